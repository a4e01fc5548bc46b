/*
 * A small libcuda.so.1 of our own, for tests on machines without a GPU.
 *
 * It exports the part of the CUDA driver's C interface that the checkpoint
 * helper and pretend programs call, so that the real cuda-bindings run against
 * it. The GPUs are those of the NVML stub: the same state file, named by
 * NVML_STUB_STATE, read again at every call. What CUDA adds to it, one item a
 * line (tests/support/cuda.py writes them and explains them):
 *
 *   cuda version NUMBER               cuDriverGetVersion; under 12080 there are no checkpoints
 *   cuda context BYTES                what a context takes on its GPU
 *   cuda rate BYTES                   a second, at which checkpoint and restore copy; 0: at once
 *   cuda fault FUNCTION CODE          the call answers CODE and has no effect
 *   cuda hang FUNCTION before|after   the call does not return, without or with its effect,
 *                                     until the line goes
 *   cuda slow FUNCTION MILLISECONDS
 *   cuda kills FUNCTION               the target of this checkpoint call dies
 *   cuda breaks FUNCTION CODE         the target of this checkpoint call is FAILED afterwards
 *   cuda ancestors only               a checkpoint call acts on descendants of its caller alone,
 *                                     as where Yama lets no other process trace one
 *
 * Every process that uses CUDA has a file PID.STARTTIME in the directory
 * NVML_STUB_STATE + ".procs": its checkpoint state and what it holds of each
 * GPU. So a helper acts on another process, the NVML stub shows the same
 * bytes, and what one process frees another can take. The files change under
 * a lock that the kernel drops when its holder dies. A file whose process has
 * ended counts for nothing.
 *
 * "Device memory" is ordinary memory of the process that allocated it, so its
 * contents survive a checkpoint as they should, and are as little readable
 * meanwhile: every call of a process that is not RUNNING waits.
 */

#include "../nvml_stub/world.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEVICE_UNAVAILABLE = 46,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    OPERATING_SYSTEM = 304,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    UNKNOWN = 999,
};

enum { MOST_BLOCKS = 4096, CHECKPOINT_VERSION = 12080 };

struct block {
    void *address;
    u64 size;
    int device;
};

struct context {
    int device, retained;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int initialised, visible_count;
static char visible[MOST_GPUS][UUID_SIZE]; /* as CUDA_VISIBLE_DEVICES was at cuInit */
static struct context contexts[MOST_GPUS];
static struct block blocks[MOST_BLOCKS];
static __thread struct context *current;

/* ---- time ---- */

static u64 now_ms(void)
{
    struct timespec moment;
    clock_gettime(CLOCK_BOOTTIME, &moment);
    return (u64)moment.tv_sec * 1000 + (u64)moment.tv_nsec / 1000000;
}

static void nap(unsigned milliseconds)
{
    struct timespec moment = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
    nanosleep(&moment, NULL);
}

static const struct mishap *mishap_of(const struct world *world, const char *kind,
                                      const char *function)
{
    for (int i = 0; i < world->mishaps; i++)
        if (strcmp(world->mishap[i].kind, kind) == 0 &&
            strcmp(world->mishap[i].function, function) == 0)
            return &world->mishap[i];
    return NULL;
}

/* ---- the processes' files ---- */

/* Everything that reads and then writes happens between these two. */
static int lock_processes(void)
{
    char file[4200];
    path_of(file, sizeof file, "lock");
    int descriptor = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor >= 0)
        while (flock(descriptor, LOCK_EX) != 0 && errno == EINTR)
            ;
    return descriptor;
}

static void unlock_processes(int descriptor)
{
    if (descriptor >= 0)
        close(descriptor);
}

static void name_of(char *name, size_t size, int pid, u64 start)
{
    snprintf(name, size, "%d.%llu", pid, start);
}

static int write_process(const struct process *process)
{
    char name[64], path[4200], scratch[4300];
    name_of(name, sizeof name, process->pid, process->start);
    path_of(path, sizeof path, name);
    snprintf(scratch, sizeof scratch, "%s.new", path);
    FILE *file = fopen(scratch, "we");
    if (file == NULL)
        return OPERATING_SYSTEM;
    fprintf(file, "state %d\nstuck %d\nbusy %llu\n", process->state, process->stuck,
            process->busy_until);
    for (int i = 0; i < process->holdings; i++)
        fprintf(file, "mem %s %llu %llu\n", process->holding[i].uuid, process->holding[i].context,
                process->holding[i].memory);
    fclose(file);
    return rename(scratch, path) == 0 ? SUCCESS : OPERATING_SYSTEM;
}

static int read_living(int pid, struct process *process)
{
    char name[64];
    name_of(name, sizeof name, pid, start_of(pid));
    return read_process(name, process);
}

static struct holding *holding_of(struct process *process, const char *uuid, int make)
{
    for (int i = 0; i < process->holdings; i++)
        if (strcmp(process->holding[i].uuid, uuid) == 0)
            return &process->holding[i];
    if (!make || process->holdings == MOST_GPUS)
        return NULL;
    struct holding *holding = &process->holding[process->holdings++];
    memset(holding, 0, sizeof *holding);
    strcpy(holding->uuid, uuid);
    return holding;
}

/* Bytes of the GPU that nobody holds now. */
static u64 free_on(const struct device *gpu)
{
    struct world world;
    read_world(&world);
    list_processes(&world);
    u64 used = gpu->reserved + gpu->extra + used_by_processes(&world, gpu);
    return used >= gpu->total ? 0 : gpu->total - used;
}

/* Whether so much more is free, and within the hard limit of each control group of the process. */
static int fits(const struct device *gpu, int pid, u64 more)
{
    struct world world;
    char uuid[UUID_SIZE], group[4096];
    u64 hard;
    int fits = more <= free_on(gpu);
    FILE *limits = open_limits("", "re");
    read_world(&world);
    list_processes(&world);
    while (fits && limits != NULL &&
           fscanf(limits, "%95s %*u %llu %4095[^\n]", uuid, &hard, group) == 3)
        if (strcmp(uuid, gpu->uuid) == 0 && is_in_group(pid, group))
            fits = used_by_group(&world, gpu, group) + more <= hard;
    if (limits != NULL)
        fclose(limits);
    return fits;
}

/* ---- every call begins here ---- */

/* Waits while `function` hangs at this point. A file "in-FUNCTION" tells tests that one does. */
static void hang(const char *function, const char *when)
{
    struct world world;
    const struct mishap *mishap;
    char name[100], marker[4200];
    int marked = 0;

    while (read_world(&world) && (mishap = mishap_of(&world, "hang", function)) != NULL &&
           strcmp(mishap->when, when) == 0) {
        if (!marked) {
            snprintf(name, sizeof name, "in-%s", function);
            path_of(marker, sizeof marker, name);
            close(open(marker, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
            marked = 1;
        }
        nap(5);
    }
}

static int enter_any(const char *function, struct world *world)
{
    if (!read_world(world))
        return NO_DEVICE;
    hang(function, "before");
    const struct mishap *slow = mishap_of(world, "slow", function);
    if (slow != NULL)
        nap((unsigned)slow->number);
    read_world(world); /* it may have changed meanwhile */
    const struct mishap *fault = mishap_of(world, "fault", function);
    return fault == NULL ? SUCCESS : fault->number;
}

static int enter(const char *function, struct world *world)
{
    return initialised ? enter_any(function, world) : NOT_INITIALIZED;
}

static int leave(const char *function, int code)
{
    hang(function, "after");
    return code;
}

/* The same for calls that use the GPU: they wait while this process is locked or parked. */
static int enter_gpu(const char *function, struct world *world)
{
    struct process me;
    int code = enter(function, world);
    while (code == SUCCESS && read_living(getpid(), &me) && me.state != RUNNING) {
        if (me.state == FAILED)
            return UNKNOWN;
        nap(2);
        read_world(world);
    }
    return code;
}

/* How a call begins, by one of these. */
#define ENTER(how, function)                                                                   \
    struct world world;                                                                        \
    int code = how(function, &world);                                                          \
    if (code != SUCCESS)                                                                       \
        return code;

static struct device *gpu_of(struct world *world, int device)
{
    return device < 0 || device >= visible_count ? NULL : find(world, visible[device]);
}

/* ---- names ---- */

EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int version, u64 flags,
                               int *status)
{
    struct world world;
    char name[128];
    (void)version;
    (void)flags;
    read_world(&world);
    *function = NULL;
    if (strncmp(symbol, "cuCheckpoint", 12) != 0 || world.version >= CHECKPOINT_VERSION) {
        Dl_info own;
        void *self = NULL;
        if (dladdr(&initialised, &own))
            self = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        if (self != NULL) {
            snprintf(name, sizeof name, "%s_v2", symbol);
            *function = dlsym(self, name);
            if (*function == NULL)
                *function = dlsym(self, symbol);
            dlclose(self);
        }
    }
    if (status != NULL)
        *status = *function == NULL ? 1 : 0;
    return *function == NULL ? NOT_FOUND : SUCCESS;
}

/* ---- start ---- */

/* All, or the ones that are named, until a name that means nothing. */
static void choose_visible(struct world *world)
{
    const char *wish = getenv("CUDA_VISIBLE_DEVICES");
    char *text = strdup(wish == NULL ? "" : wish), *rest = text, *word;

    visible_count = 0;
    for (int i = 0; wish == NULL && i < world->devices; i++)
        if (!world->device[i].is_mig && visible_count < MOST_GPUS)
            strcpy(visible[visible_count++], world->device[i].uuid);
    while ((word = strsep(&rest, ",")) != NULL && find(world, word) && visible_count < MOST_GPUS)
        strcpy(visible[visible_count++], word);
    free(text);
}

EXPORT int cuInit(unsigned flags)
{
    (void)flags;
    ENTER(enter_any, __func__)
    pthread_mutex_lock(&mutex);
    if (!initialised)
        choose_visible(&world);
    initialised = visible_count > 0;
    pthread_mutex_unlock(&mutex);
    return initialised ? SUCCESS : NO_DEVICE;
}

EXPORT int cuDriverGetVersion(int *version)
{
    struct world world;
    read_world(&world);
    *version = world.version;
    return SUCCESS;
}

/* ---- devices ---- */

EXPORT int cuDeviceGetCount(int *count)
{
    ENTER(enter, __func__)
    *count = visible_count;
    return SUCCESS;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
    ENTER(enter, __func__)
    *device = ordinal;
    return gpu_of(&world, ordinal) == NULL ? INVALID_DEVICE : SUCCESS;
}

EXPORT int cuDeviceGetName(char *name, int size, int device)
{
    ENTER(enter, __func__)
    struct device *gpu = gpu_of(&world, device);
    if (gpu == NULL)
        return INVALID_DEVICE;
    snprintf(name, (size_t)size, "%s", gpu->name);
    return SUCCESS;
}

static void uuid_to_bytes(const char *text, unsigned char *bytes)
{
    text += strcspn(text, "-");
    for (int i = 0; i < 16; i++) {
        text += *text == '-';
        bytes[i] = 0;
        text += 2 * (sscanf(text, "%2hhx", &bytes[i]) == 1);
    }
}

EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    ENTER(enter, "cuDeviceGetUuid")
    struct device *gpu = gpu_of(&world, device);
    if (gpu == NULL)
        return INVALID_DEVICE;
    uuid_to_bytes(gpu->uuid, uuid);
    return SUCCESS;
}

/* ---- contexts ---- */

/* Adds to what this process holds of a GPU; refuses what does not fit. */
static int take(struct world *world, int device, u64 context, u64 memory)
{
    struct process me;
    struct device *gpu = gpu_of(world, device);
    int code = SUCCESS, lock;

    if (gpu == NULL)
        return INVALID_DEVICE;
    if (gpu->error)
        return DEVICE_UNAVAILABLE;
    lock = lock_processes();
    if (!read_living(getpid(), &me)) {
        memset(&me, 0, sizeof me);
        me.pid = getpid();
        me.start = start_of(me.pid);
    }
    if (me.state != RUNNING)
        code = NOT_READY; /* locked in this very moment: the caller waits and asks again */
    else if (!fits(gpu, me.pid, context + memory))
        code = OUT_OF_MEMORY;
    else {
        struct holding *holding = holding_of(&me, gpu->uuid, 1);
        if (holding == NULL)
            code = OUT_OF_MEMORY;
        else {
            holding->context += context;
            holding->memory += memory;
            code = write_process(&me);
        }
    }
    unlock_processes(lock);
    return code;
}

static void give_back(struct world *world, int device, u64 context, u64 memory)
{
    struct process me;
    struct device *gpu = gpu_of(world, device);
    int lock = lock_processes();
    if (gpu != NULL && read_living(getpid(), &me)) {
        struct holding *holding = holding_of(&me, gpu->uuid, 0);
        if (holding != NULL) {
            holding->context -= context < holding->context ? context : holding->context;
            holding->memory -= memory < holding->memory ? memory : holding->memory;
            if (holding->context + holding->memory == 0)
                *holding = me.holding[--me.holdings];
            write_process(&me);
        }
    }
    unlock_processes(lock);
}

/* Once granted room, or refused for good. */
static int take_patiently(const char *function, struct world *world, int device, u64 context,
                          u64 memory)
{
    int code;
    do
        code = take(world, device, context, memory);
    while (code == NOT_READY && (code = enter_gpu(function, world)) == SUCCESS);
    return code;
}

EXPORT int cuDevicePrimaryCtxRetain(struct context **context, int device)
{
    ENTER(enter_gpu, __func__)
    struct device *gpu = gpu_of(&world, device);
    if (gpu == NULL)
        return INVALID_DEVICE;
    pthread_mutex_lock(&mutex);
    if (contexts[device].retained == 0) {
        /* It stays open as long as the process lives. */
        int file = gpu->file[0] ? open(gpu->file, O_RDWR | O_CLOEXEC) : -1;
        code = gpu->file[0] && file < 0
                   ? NO_DEVICE
                   : take_patiently(__func__, &world, device, world.context, 0);
        if (code != SUCCESS && file >= 0)
            close(file);
    }
    if (code == SUCCESS) {
        contexts[device].device = device;
        contexts[device].retained++;
        *context = &contexts[device];
    }
    pthread_mutex_unlock(&mutex);
    return leave(__func__, code);
}

EXPORT int cuCtxSetCurrent(struct context *context)
{
    ENTER(enter_gpu, __func__)
    current = context;
    return SUCCESS;
}

/* For tests: GPU work that keeps this process's GPUs busy for so long. */
EXPORT int cuda_stub_work(unsigned milliseconds)
{
    struct process me;
    ENTER(enter_gpu, __func__)
    int lock = lock_processes();
    if (read_living(getpid(), &me)) {
        me.busy_until = now_ms() + milliseconds;
        code = write_process(&me);
    } else
        code = INVALID_CONTEXT;
    unlock_processes(lock);
    return code;
}

/* ---- memory ---- */

static struct block *block_at(u64 address)
{
    for (int i = 0; i < MOST_BLOCKS; i++) {
        u64 begin = (u64)blocks[i].address;
        if (begin != 0 && address >= begin && address < begin + blocks[i].size)
            return &blocks[i];
    }
    return NULL;
}

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    ENTER(enter_gpu, "cuMemGetInfo")
    struct device *gpu = current == NULL ? NULL : gpu_of(&world, current->device);
    if (gpu == NULL || gpu->error)
        return leave("cuMemGetInfo", gpu == NULL ? INVALID_CONTEXT : DEVICE_UNAVAILABLE);
    int lock = lock_processes();
    *free_bytes = free_on(gpu);
    *total = gpu->total - gpu->reserved;
    unlock_processes(lock);
    return leave("cuMemGetInfo", SUCCESS);
}

EXPORT int cuMemAlloc_v2(u64 *pointer, size_t size)
{
    int place = 0;
    ENTER(enter_gpu, "cuMemAlloc")
    if (current == NULL || size == 0)
        return current == NULL ? INVALID_CONTEXT : INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    while (place < MOST_BLOCKS && blocks[place].address != NULL)
        place++;
    code = place == MOST_BLOCKS
               ? OUT_OF_MEMORY
               : take_patiently("cuMemAlloc", &world, current->device, 0, size);
    if (code == SUCCESS) {
        /* Pages that nobody writes to cost nothing, so a pretend GPU may be large. */
        void *address = mmap(NULL, size, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (address == MAP_FAILED) {
            give_back(&world, current->device, 0, size);
            code = OUT_OF_MEMORY;
        } else {
            blocks[place] = (struct block){address, size, current->device};
            *pointer = (u64)address;
        }
    }
    pthread_mutex_unlock(&mutex);
    return leave("cuMemAlloc", code);
}

EXPORT int cuMemFree_v2(u64 pointer)
{
    ENTER(enter_gpu, "cuMemFree")
    pthread_mutex_lock(&mutex);
    struct block *block = block_at(pointer);
    if (block == NULL || (u64)block->address != pointer)
        code = INVALID_VALUE;
    else {
        munmap(block->address, block->size);
        give_back(&world, block->device, 0, block->size);
        block->address = NULL;
    }
    pthread_mutex_unlock(&mutex);
    return leave("cuMemFree", code);
}

/* Without `from` the bytes are set to `value`. */
static int copy(const char *function, u64 device_side, size_t size, void *to, const void *from,
                int value)
{
    ENTER(enter_gpu, function)
    pthread_mutex_lock(&mutex);
    struct block *block = block_at(device_side);
    if (block == NULL || device_side + size > (u64)block->address + block->size)
        code = INVALID_VALUE;
    else if (from == NULL)
        memset(to, value, size);
    else
        memcpy(to, from, size);
    pthread_mutex_unlock(&mutex);
    return leave(function, code);
}

EXPORT int cuMemcpyHtoD_v2(u64 to, const void *from, size_t size)
{
    return copy("cuMemcpyHtoD", to, size, (void *)to, from, 0);
}

EXPORT int cuMemcpyDtoH_v2(void *to, u64 from, size_t size)
{
    return copy("cuMemcpyDtoH", from, size, to, (const void *)from, 0);
}

EXPORT int cuMemsetD8_v2(u64 pointer, unsigned char value, size_t size)
{
    return copy("cuMemsetD8", pointer, size, (void *)pointer, NULL, value);
}

/* ---- checkpoints ---- */

struct lock_args {
    unsigned timeout_ms, reserved0;
    u64 reserved1[7];
};

struct gpu_pair {
    unsigned char from[16], to[16];
};

struct restore_args {
    struct gpu_pair *pairs;
    unsigned count;
};

static int descends(int pid, int ancestor)
{
    while (pid > 1 && pid != ancestor) {
        char path[64], text[1024];
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        FILE *file = fopen(path, "re");
        if (file == NULL)
            return 0;
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        char *end = strrchr(text, ')');
        if (end == NULL || sscanf(end + 1, " %*c %d", &pid) != 1)
            return 0;
    }
    return pid == ancestor;
}

/* Finds a target that this process may act on, under the lock. */
static int target(const struct world *world, int pid, struct process *process)
{
    char folder[64];
    struct stat there;
    if (!read_living(pid, process))
        return INVALID_VALUE; /* it has no CUDA in it */
    if (mishap_of(world, "ancestors", "only") != NULL && !descends(pid, getpid()))
        return OPERATING_SYSTEM;
    snprintf(folder, sizeof folder, "/proc/%d", pid);
    if (geteuid() != 0 && stat(folder, &there) == 0 && there.st_uid != geteuid())
        return NOT_PERMITTED;
    return SUCCESS;
}

/* What is done to the target instead of, or after, what was asked. */
static int mistreat(const struct world *world, const char *function, struct process *process)
{
    const struct mishap *breaks = mishap_of(world, "breaks", function);
    if (mishap_of(world, "kills", function) != NULL) {
        kill(process->pid, SIGKILL);
        while (start_of(process->pid) == process->start)
            nap(1);
        return INVALID_VALUE;
    }
    if (breaks != NULL) {
        process->state = FAILED;
        write_process(process);
        return breaks->number;
    }
    return SUCCESS;
}

enum { ANY_STATE = -1 };

/* The lock, and what became of the search for a target in this state. */
static int begin(const struct world *world, const char *function, int pid, int state,
                 struct process *process, int *code)
{
    int lock = lock_processes();
    *code = target(world, pid, process);
    if (*code == SUCCESS && state != ANY_STATE && process->state != state)
        *code = ILLEGAL_STATE;
    if (*code == SUCCESS)
        *code = mistreat(world, function, process);
    return lock;
}

/* The target is in this state, if all went well. */
static int end(const char *function, int lock, int code, struct process *process, int state)
{
    if (code == SUCCESS) {
        process->state = state;
        code = write_process(process);
    }
    unlock_processes(lock);
    return leave(function, code);
}

static u64 held_by(const struct process *process)
{
    u64 sum = 0;
    for (int i = 0; i < process->holdings; i++)
        sum += process->holding[i].context + process->holding[i].memory;
    return sum;
}

static void copying(const struct world *world, int pid)
{
    struct process process;
    if (world->rate != 0 && read_living(pid, &process))
        nap((unsigned)(held_by(&process) * 1000 / world->rate));
}

EXPORT int cuCheckpointProcessGetState(int pid, int *state)
{
    struct process process;
    ENTER(enter, __func__)
    int lock = begin(&world, __func__, pid, ANY_STATE, &process, &code);
    if (code == SUCCESS)
        *state = process.state;
    unlock_processes(lock);
    return leave(__func__, code);
}

EXPORT int cuCheckpointProcessLock(int pid, const struct lock_args *args)
{
    struct world world;
    struct process process;
    int code = enter(__func__, &world), lock;
    u64 until = args == NULL || args->timeout_ms == 0 ? ~0ULL : now_ms() + args->timeout_ms;
    while (code == SUCCESS) {
        lock = begin(&world, __func__, pid, RUNNING, &process, &code);
        if (code != SUCCESS || process.busy_until <= now_ms())
            return end(__func__, lock, code, &process, LOCKED);
        unlock_processes(lock);
        if (now_ms() >= until)
            code = NOT_READY;
        nap(2);
    }
    return leave(__func__, code);
}

EXPORT int cuCheckpointProcessCheckpoint(int pid, void *args)
{
    struct process process;
    (void)args;
    ENTER(enter, __func__)
    copying(&world, pid);
    int lock = begin(&world, __func__, pid, LOCKED, &process, &code);
    for (int i = 0; code == SUCCESS && i < process.holdings; i++) {
        struct device *gpu = find(&world, process.holding[i].uuid);
        if (gpu == NULL || gpu->error) {
            process.state = FAILED;
            write_process(&process);
            code = DEVICE_UNAVAILABLE;
        }
    }
    return end(__func__, lock, code, &process, CHECKPOINTED);
}

static struct device *gpu_by_bytes(struct world *world, const unsigned char *bytes)
{
    unsigned char uuid[16];
    for (int i = 0; i < world->devices; i++) {
        uuid_to_bytes(world->device[i].uuid, uuid);
        if (!world->device[i].is_mig && memcmp(uuid, bytes, 16) == 0)
            return &world->device[i];
    }
    return NULL;
}

/* Renames the target's GPUs. Every GPU of the host must be named, each new one once. */
static int remap(struct world *world, struct process *process, const struct restore_args *args)
{
    struct process moved = *process;
    char named[MOST_DEVICES] = {0}, taken[MOST_DEVICES] = {0};

    for (unsigned i = 0; i < args->count; i++) {
        const struct device *old = gpu_by_bytes(world, args->pairs[i].from);
        const struct device *new = gpu_by_bytes(world, args->pairs[i].to);
        if (old == NULL || new == NULL || named[old->index]++ || taken[new->index]++)
            return INVALID_VALUE;
        for (int j = 0; j < process->holdings; j++)
            if (strcmp(process->holding[j].uuid, old->uuid) == 0) {
                if (strcmp(old->name, new->name) != 0)
                    return NOT_SUPPORTED; /* another kind of GPU */
                strcpy(moved.holding[j].uuid, new->uuid);
            }
    }
    if ((int)args->count != world->gpus)
        return INVALID_VALUE;
    *process = moved;
    return SUCCESS;
}

EXPORT int cuCheckpointProcessRestore(int pid, const struct restore_args *args)
{
    struct process process;
    ENTER(enter, __func__)
    copying(&world, pid);
    int lock = begin(&world, __func__, pid, CHECKPOINTED, &process, &code);
    if (code == SUCCESS && process.stuck)
        code = OPERATING_SYSTEM; /* as after an earlier restore that ran out of memory */
    if (code == SUCCESS && args != NULL && args->count != 0 &&
        (world.version < 13000 || args->pairs == NULL))
        code = INVALID_VALUE;
    if (code == SUCCESS && args != NULL && args->count != 0)
        code = remap(&world, &process, args);
    for (int i = 0; code == SUCCESS && i < process.holdings; i++) {
        struct device *gpu = find(&world, process.holding[i].uuid);
        if (gpu == NULL || gpu->error)
            code = DEVICE_UNAVAILABLE;
        else if (!fits(gpu, pid, process.holding[i].context + process.holding[i].memory)) {
            read_living(pid, &process);
            process.stuck = 1;
            write_process(&process);
            code = OUT_OF_MEMORY;
        }
    }
    return end(__func__, lock, code, &process, LOCKED);
}

EXPORT int cuCheckpointProcessUnlock(int pid, void *args)
{
    struct process process;
    (void)args;
    ENTER(enter, __func__)
    int lock = begin(&world, __func__, pid, LOCKED, &process, &code);
    return end(__func__, lock, code, &process, RUNNING);
}
