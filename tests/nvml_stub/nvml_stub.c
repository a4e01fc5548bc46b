/*
 * A small libnvidia-ml.so.1 of our own, for tests on machines without a GPU.
 *
 * It exports the part of NVML's C interface that jupyter_gpushare and the
 * frameworks' device counters call, so that the real pynvml runs against it.
 * What it answers is read from the file named by NVML_STUB_STATE at *every*
 * call: a test changes the world while the library is loaded. The file is
 * replaced atomically by tests/support/nvml.py, which is also where the lines
 * are explained to test authors.
 *
 * One item a line, words separated by single spaces; a name is the rest of
 * its line; sizes in bytes:
 *
 *   init CODE                         nvmlInit answers CODE
 *   every CODE                        every call on the library answers CODE
 *   slow MILLISECONDS                 every call on a GPU takes so long, or until the line goes
 *   lacks FUNCTION                    FUNCTION answers "function not found"
 *   sticky 1                          a device's error stays until the library is started again
 *   gpu UUID TOTAL RESERVED NAME
 *   mig PARENT UUID GI CI TOTAL RESERVED NAME
 *   migmode UUID                      in MIG mode (also without instances)
 *   error UUID CODE                   every call on this device answers CODE
 *   fails UUID FUNCTION CODE          one function on this device answers CODE
 *   util UUID PERCENT
 *   warm UUID CELSIUS                 (absent: not supported)
 *   draws UUID MILLIWATT              (absent: not supported)
 *   cores UUID COUNT                  (absent: not supported)
 *   capability UUID MAJORMINOR        (90 is 9.0; absent: not supported)
 *   extra UUID BYTES                  used by no listed process
 *   grouped UUID MIB                  used by each control group, besides what its processes use
 *   file UUID PATH                    the CUDA double opens it for a context on this GPU
 *   recovery UUID ACTION              recovery action field (absent: not supported)
 *   persistence UUID 0|1              persistence mode (absent: on)
 *   computemode UUID MODE             0: default, 2: prohibited, 3: exclusive (absent: default)
 *   proc UUID PID BYTES|? C|G|M FLAG  FLAG: "live" = gone when the process is; "stays"
 *   xid SERIAL UUID XID GI|-          told once by each event set that was made before it
 *   work UUID PID PERCENT STAMP       a sample of its kernels' work, STAMP in microseconds
 *
 * Beside it, in the directory NVML_STUB_STATE + ".procs", the CUDA double
 * (tests/cuda_stub/cuda_stub.c) keeps a file for each process that uses it:
 * such processes are shown as well, as long as they live and are not
 * checkpointed, with the bytes that they hold.
 */

#include "world.h"

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    FUNCTION_NOT_FOUND = 13,
    VERSION_MISMATCH = 25,
};

/* A handle outlives the lines it was made from, as a real one does. */
struct handle {
    char uuid[UUID_SIZE];
    int stuck; /* the error seen since the library was started, when errors are sticky */
};

struct event_set {
    u64 seen;
    int registered;
    char uuid[MOST_DEVICES][UUID_SIZE];
};

struct event_data {
    struct handle *device;
    u64 type, data;
    unsigned gi, ci;
};

struct process_info {
    unsigned pid;
    u64 memory;
    unsigned gi, ci;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct handle handles[MOST_DEVICES * 4];
static int handles_used;
static int initialised;
static struct world now; /* only under the lock */

static struct handle *handle_of(const char *uuid)
{
    for (int i = 0; i < handles_used; i++)
        if (strcmp(handles[i].uuid, uuid) == 0)
            return &handles[i];
    if (handles_used == MOST_DEVICES * 4)
        return NULL;
    strcpy(handles[handles_used].uuid, uuid);
    return &handles[handles_used++];
}

/* Only under the lock. */
static int look(void)
{
    if (!read_world(&now))
        return DRIVER_NOT_LOADED;
    list_processes(&now);
    for (int i = 0; now.sticky && i < now.devices; i++) {
        struct handle *handle = handle_of(now.device[i].uuid);
        if (handle == NULL)
            continue;
        if (now.device[i].error == SUCCESS)
            now.device[i].error = handle->stuck;
        if (initialised)
            handle->stuck = now.device[i].error;
    }
    return SUCCESS;
}

static int check(const char *function)
{
    int code = look();
    if (code == SUCCESS && !initialised)
        code = UNINITIALIZED;
    if (code == SUCCESS)
        code = now.every;
    for (int i = 0; code == SUCCESS && i < now.lacks; i++)
        if (strcmp(now.lack[i], function) == 0)
            code = FUNCTION_NOT_FOUND;
    return code;
}

/* What a function of this device answers; of a MIG device also its parent's error. */
static int answer_of(const char *function, const struct device *device)
{
    int code = device == NULL ? NOT_FOUND : device->error;
    if (code == SUCCESS && device->is_mig) {
        const struct device *parent = find(&now, device->parent);
        code = parent == NULL ? SUCCESS : parent->error;
    }
    for (int i = 0; code == SUCCESS && i < now.fails; i++)
        if (strcmp(now.fail[i].function, function) == 0 &&
            strcmp(now.fail[i].uuid, device->uuid) == 0)
            code = now.fail[i].code;
    return code;
}

/* Takes the lock and finds the device; only SUCCESS leaves the lock taken. */
static int enter(const char *function, const struct handle *handle, struct device **device)
{
    const struct timespec moment = {0, 5 * 1000 * 1000};
    int code, waited = 0;

    pthread_mutex_lock(&lock);
    code = check(function);
    while (code == SUCCESS && waited < now.slow) {
        pthread_mutex_unlock(&lock);
        nanosleep(&moment, NULL);
        waited += 5;
        pthread_mutex_lock(&lock);
        code = check(function);
    }
    if (code == SUCCESS && handle == NULL)
        code = INVALID_ARGUMENT;
    if (code == SUCCESS)
        code = answer_of(function, *device = find(&now, handle->uuid));
    if (code != SUCCESS)
        pthread_mutex_unlock(&lock);
    return code;
}

/* How a function of a device begins: from here on it has the lock. */
#define ENTER(function)                                                                        \
    struct device *device = NULL;                                                              \
    int code = enter(function, handle, &device);                                               \
    if (code != SUCCESS)                                                                       \
        return code;

static int leave(int code)
{
    pthread_mutex_unlock(&lock);
    return code;
}

static int copy(char *to, unsigned size, const char *text)
{
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

/* ---- the library ---- */

EXPORT int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    int code = look();
    if (code == SUCCESS)
        code = now.init;
    if (code == SUCCESS)
        initialised++;
    return leave(code);
}

EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlInit(void) { return nvmlInitWithFlags(0); }

EXPORT int nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    int code = initialised > 0 ? SUCCESS : UNINITIALIZED;
    if (initialised > 0)
        initialised--;
    for (int i = 0; initialised == 0 && i < handles_used; i++)
        handles[i].stuck = SUCCESS;
    return leave(code);
}

/* For tests: how many times the library is initialised and not shut down. */
EXPORT int nvml_stub_initialised(void) { return initialised; }

EXPORT const char *nvmlErrorString(int code)
{
    static __thread char text[64];
    snprintf(text, sizeof text, "NVML error %d", code);
    return text;
}

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    pthread_mutex_lock(&lock);
    int code = check(__func__);
    return leave(code == SUCCESS ? copy(text, size, "580.0.stub") : code);
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    pthread_mutex_lock(&lock);
    int code = check(__func__);
    *count = (unsigned)now.gpus;
    return leave(code);
}

static int give_handle(const char *function, struct device *device, struct handle **handle)
{
    int code = answer_of(function, device);
    if (code == SUCCESS)
        *handle = handle_of(device->uuid);
    return code;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct handle **handle)
{
    struct device *found = NULL;
    pthread_mutex_lock(&lock);
    int code = check(__func__);
    for (int i = 0; i < now.devices; i++)
        if (!now.device[i].is_mig && now.device[i].index == index)
            found = &now.device[i];
    if (code == SUCCESS)
        code = found == NULL ? INVALID_ARGUMENT : give_handle(__func__, found, handle);
    return leave(code);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, struct handle **handle)
{
    pthread_mutex_lock(&lock);
    int code = check(__func__);
    if (code == SUCCESS)
        code = give_handle(__func__, find(&now, uuid), handle);
    return leave(code);
}

EXPORT int nvmlDeviceGetUUID(struct handle *handle, char *text, unsigned size)
{
    ENTER(__func__)
    return leave(copy(text, size, device->uuid));
}

EXPORT int nvmlDeviceGetName(struct handle *handle, char *text, unsigned size)
{
    ENTER(__func__)
    return leave(copy(text, size, device->name));
}

struct memory {
    u64 total, free, used;
};

struct memory_v2 {
    unsigned version;
    u64 total, reserved, free, used;
};

EXPORT int nvmlDeviceGetMemoryInfo(struct handle *handle, struct memory *memory)
{
    ENTER(__func__)
    memory->total = device->total;
    memory->used = device->reserved + device->extra + used_by_processes(&now, device);
    memory->free = memory->total - memory->used;
    return leave(SUCCESS);
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(struct handle *handle, struct memory_v2 *memory)
{
    ENTER(__func__)
    if (memory->version != (sizeof *memory | 2u << 24))
        return leave(VERSION_MISMATCH);
    memory->total = device->total;
    memory->reserved = device->reserved;
    memory->used = device->extra + used_by_processes(&now, device);
    memory->free = memory->total - memory->reserved - memory->used;
    return leave(SUCCESS);
}

/* One number of a device. `answer` says whether it has that. */
#define NUMBER(name, figure, answer)                                                           \
    EXPORT int name(struct handle *handle, unsigned *told)                                     \
    {                                                                                          \
        ENTER(__func__)                                                                        \
        *told = (unsigned)(figure);                                                            \
        return leave((answer) ? SUCCESS : NOT_SUPPORTED);                                      \
    }

NUMBER(nvmlDeviceGetPersistenceMode, device->persistence, !device->is_mig)
NUMBER(nvmlDeviceGetComputeMode, device->computemode, !device->is_mig)
NUMBER(nvmlDeviceGetNumGpuCores, device->cores, device->cores)
NUMBER(nvmlDeviceGetPowerUsage, device->draws, device->draws)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, device->migmode ? 7 : 0, 1)
NUMBER(nvmlDeviceGetGpuInstanceId, device->gi, device->is_mig)
NUMBER(nvmlDeviceGetComputeInstanceId, device->ci, device->is_mig)

struct utilisation {
    unsigned gpu, memory;
};

EXPORT int nvmlDeviceGetUtilizationRates(struct handle *handle, struct utilisation *rates)
{
    ENTER(__func__)
    rates->gpu = (unsigned)device->util;
    rates->memory = 0;
    return leave(device->is_mig ? NOT_SUPPORTED : SUCCESS);
}

EXPORT int nvmlDeviceGetTemperature(struct handle *handle, unsigned sensor, unsigned *celsius)
{
    ENTER(__func__)
    *celsius = (unsigned)device->warm;
    return leave(sensor == 0 && device->warm ? SUCCESS : NOT_SUPPORTED);
}

struct set_limits {
    const char *group;
    u64 soft, hard;
};

struct get_limits {
    const char *group;
    u64 soft, hard, used;
};

EXPORT int nvmlDeviceSetMemoryLimits_v1(struct handle *handle, struct set_limits *limits)
{
    ENTER(__func__)
    if (device->is_mig || device->migmode)
        return leave(NOT_SUPPORTED);
    if (access(limits->group, F_OK) != 0)
        return leave(NOT_FOUND);
    /* In place of the line before, and without groups that are gone. */
    FILE *before = open_limits("", "re"), *after = open_limits(".new", "we");
    char line[4400], uuid[UUID_SIZE], group[4096], old[4200], new[4300];
    while (before != NULL && after != NULL && fgets(line, sizeof line, before))
        if (sscanf(line, "%95s %*u %*u %4095[^\n]", uuid, group) == 2 && access(group, F_OK) == 0 &&
            (strcmp(uuid, device->uuid) != 0 || strcmp(group, limits->group) != 0))
            fputs(line, after);
    if (before != NULL)
        fclose(before);
    if (after == NULL)
        return leave(INVALID_ARGUMENT);
    fprintf(after, "%s %llu %llu %s\n", device->uuid, limits->soft, limits->hard, limits->group);
    fclose(after);
    snprintf(old, sizeof old, "%s.limits", getenv("NVML_STUB_STATE"));
    snprintf(new, sizeof new, "%s.new", old);
    rename(new, old);
    return leave(SUCCESS);
}

EXPORT int nvmlDeviceGetMemoryLimits_v1(struct handle *handle, struct get_limits *limits)
{
    ENTER(__func__)
    if (device->is_mig || device->migmode)
        return leave(NOT_SUPPORTED);
    if (access(limits->group, F_OK) != 0)
        return leave(NOT_FOUND);
    limits->used = used_by_group(&now, device, limits->group);
    return leave(SUCCESS);
}

EXPORT int nvmlDeviceGetCudaComputeCapability(struct handle *handle, int *major, int *minor)
{
    ENTER(__func__)
    *major = device->capability / 10;
    *minor = device->capability % 10;
    return leave(device->capability ? SUCCESS : NOT_SUPPORTED);
}

struct work_sample {
    unsigned pid;
    u64 stamp;
    unsigned sm, memory, encoder, decoder;
};

/*
 * One sample a process that did some work after the stamp; "not found" where nobody did. Without
 * a buffer it says how much room it wants.
 */
EXPORT int nvmlDeviceGetProcessUtilization(struct handle *handle, struct work_sample *samples,
                                           unsigned *count, u64 after)
{
    unsigned room = samples == NULL ? 0 : *count, found = 0;
    ENTER(__func__)
    if (device->is_mig || device->migmode)
        return leave(NOT_SUPPORTED);
    for (int i = 0; i < now.samples; i++) {
        const struct sample *sample = &now.sample[i];
        if (strcmp(sample->uuid, device->uuid) != 0 || sample->stamp <= after ||
            sample->percent == 0)
            continue;
        if (found < room) {
            memset(&samples[found], 0, sizeof *samples);
            samples[found].pid = sample->pid;
            samples[found].stamp = sample->stamp;
            samples[found].sm = sample->percent;
        }
        found++;
    }
    *count = found;
    return leave(found == 0 ? NOT_FOUND : found > room ? INSUFFICIENT_SIZE : SUCCESS);
}

static int list(const char *function, char kind, struct handle *handle, unsigned *count,
                struct process_info *info)
{
    unsigned room = *count, found = 0;
    ENTER(function)
    if (device->is_mig && kind != 'C')
        return leave(NOT_SUPPORTED);
    for (int i = 0; i < now.entries; i++) {
        const struct entry *entry = &now.entry[i];
        if (entry->kind != kind || strcmp(entry->uuid, device->uuid) != 0)
            continue;
        if (found < room && info != NULL) {
            info[found].pid = entry->pid;
            info[found].memory = entry->memory;
            info[found].gi = device->gi;
            info[found].ci = 0xFFFFFFFF;
        }
        found++;
    }
    *count = found;
    return leave(found > room ? INSUFFICIENT_SIZE : SUCCESS);
}

#define PROCESS_LIST(name, kind)                                                               \
    EXPORT int name##_v3(struct handle *handle, unsigned *count, struct process_info *info)    \
    {                                                                                          \
        return list(__func__, kind, handle, count, info);                                      \
    }                                                                                          \
    EXPORT int name##_v2(struct handle *handle, unsigned *count, struct process_info *info)    \
    {                                                                                          \
        return list(__func__, kind, handle, count, info);                                      \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, 'C')
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, 'G')
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, 'M')

struct field_value {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned value_type;
    int code;
    u64 value;
};

EXPORT int nvmlDeviceGetFieldValues(struct handle *handle, int count, struct field_value *values)
{
    ENTER(__func__)
    for (int i = 0; i < count; i++) {
        int known = values[i].field == 230 && device->recovery >= 0;
        values[i].code = known ? SUCCESS : NOT_SUPPORTED;
        values[i].value_type = 1;
        values[i].value = known ? (u64)device->recovery : 0;
    }
    return leave(SUCCESS);
}

/* ---- MIG ---- */

EXPORT int nvmlDeviceGetMigMode(struct handle *handle, unsigned *current, unsigned *pending)
{
    ENTER(__func__)
    *current = *pending = (unsigned)device->migmode;
    return leave(device->is_mig ? INVALID_ARGUMENT : SUCCESS);
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct handle *handle, unsigned index,
                                               struct handle **mig)
{
    unsigned position = 0;
    ENTER(__func__)
    code = NOT_FOUND;
    for (int i = 0; i < now.devices; i++)
        if (now.device[i].is_mig && strcmp(now.device[i].parent, device->uuid) == 0 &&
            position++ == index)
            code = give_handle(__func__, &now.device[i], mig);
    return leave(code);
}

/* ---- events ---- */

EXPORT int nvmlEventSetCreate(struct event_set **set)
{
    pthread_mutex_lock(&lock);
    int code = check(__func__);
    if (code == SUCCESS) {
        *set = calloc(1, sizeof **set);
        for (int i = 0; i < now.xids; i++)
            if (now.xid[i].serial > (*set)->seen)
                (*set)->seen = now.xid[i].serial;
    }
    return leave(code);
}

EXPORT int nvmlDeviceRegisterEvents(struct handle *handle, u64 types, struct event_set *set)
{
    (void)types;
    ENTER(__func__)
    if (set->registered < MOST_DEVICES)
        strcpy(set->uuid[set->registered++], device->uuid);
    return leave(device->is_mig ? NOT_SUPPORTED : SUCCESS);
}

EXPORT int nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned timeout)
{
    (void)timeout; /* our callers never wait */
    pthread_mutex_lock(&lock);
    int code = check(__func__);
    if (code != SUCCESS)
        return leave(code);
    for (int i = 0; i < now.xids; i++) {
        const struct xid *xid = &now.xid[i];
        if (xid->serial <= set->seen)
            continue;
        for (int j = 0; j < set->registered; j++)
            if (strcmp(set->uuid[j], xid->uuid) == 0) {
                set->seen = xid->serial;
                data->device = handle_of(xid->uuid);
                data->type = 8; /* nvmlEventTypeXidCriticalError */
                data->data = xid->number;
                data->gi = xid->gi;
                data->ci = 0xFFFFFFFF;
                return leave(SUCCESS);
            }
    }
    return leave(TIMEOUT);
}

EXPORT int nvmlEventSetFree(struct event_set *set)
{
    free(set);
    return SUCCESS;
}
