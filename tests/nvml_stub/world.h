/*
 * What both of our libraries know: the world in the state file, the processes that live, and the
 * files of those that use the CUDA double.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <mntent.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { UUID_SIZE = 96, NAME_SIZE = 96, MOST_GPUS = 32 };
enum { MOST_DEVICES = 128, MOST_ENTRIES = 512, MOST_XIDS = 64, MOST_LACKS = 32, MOST_FAILS = 32 };
enum { MOST_SAMPLES = 256, MOST_MISHAPS = 64, PATH_SIZE = 256 };
enum { RUNNING, LOCKED, CHECKPOINTED, FAILED };
typedef unsigned long long u64;

/* Clock ticks since boot at which a living process began; 0 when there is none. */
static u64 start_of(int pid)
{
    char path[64], text[1024], state;
    u64 start = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    char *end = strrchr(text, ')');
    if (end == NULL ||
        sscanf(end + 1,
               " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
               &state, &start) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : start;
}

struct device {
    char uuid[UUID_SIZE], parent[UUID_SIZE], name[NAME_SIZE], file[PATH_SIZE];
    unsigned gi, ci, index;
    u64 total, reserved, extra;
    int is_mig, migmode, error, util, recovery, persistence, warm, draws, cores, capability;
    int computemode, grouped;
};

#define NUMBER_OF(name) {#name, offsetof(struct device, name)}
static const struct {
    const char *name;
    size_t place;
} NUMBERS[] = {
    NUMBER_OF(migmode),     NUMBER_OF(error), NUMBER_OF(util),  NUMBER_OF(recovery),
    NUMBER_OF(persistence), NUMBER_OF(warm),  NUMBER_OF(draws), NUMBER_OF(cores),
    NUMBER_OF(capability),  NUMBER_OF(computemode), NUMBER_OF(grouped),
};

/* A process on one of a device's lists. */
struct entry {
    char uuid[UUID_SIZE];
    unsigned pid;
    u64 memory; /* all bits set: unknown */
    char kind;
};

struct xid {
    u64 serial, number;
    char uuid[UUID_SIZE];
    unsigned gi;
};

struct sample {
    char uuid[UUID_SIZE];
    unsigned pid, percent;
    u64 stamp;
};

struct failure {
    char uuid[UUID_SIZE], function[64];
    int code;
};

struct mishap {
    char kind[12], function[64], when[8];
    int number;
};

struct world {
    int init, every, slow, sticky, version;
    int devices, gpus, entries, xids, lacks, fails, samples, mishaps;
    u64 context, rate;
    struct device device[MOST_DEVICES];
    struct entry entry[MOST_ENTRIES];
    struct xid xid[MOST_XIDS];
    char lack[MOST_LACKS][64];
    struct failure fail[MOST_FAILS];
    struct sample sample[MOST_SAMPLES];
    struct mishap mishap[MOST_MISHAPS];
};

struct holding {
    char uuid[UUID_SIZE];
    u64 context, memory;
};

/* One that uses the CUDA double. */
struct process {
    int pid, state, stuck, holdings;
    u64 start, busy_until; /* milliseconds of the boot clock */
    struct holding holding[MOST_GPUS];
};

/* ---- the state file ---- */

static struct device *find(struct world *world, const char *uuid)
{
    for (int i = 0; i < world->devices; i++)
        if (strcmp(world->device[i].uuid, uuid) == 0)
            return &world->device[i];
    return NULL;
}

static void list_process(struct world *world, const char *uuid, int pid, u64 memory, char kind)
{
    if (world->entries == MOST_ENTRIES)
        return;
    struct entry *entry = &world->entry[world->entries++];
    strcpy(entry->uuid, uuid);
    entry->pid = (unsigned)pid;
    entry->memory = memory;
    entry->kind = kind;
}

static struct device *add(struct world *world, const char *uuid, u64 total, u64 reserved,
                          const char *name)
{
    if (world->devices == MOST_DEVICES)
        return NULL;
    struct device *device = &world->device[world->devices++];
    strcpy(device->uuid, uuid);
    snprintf(device->name, NAME_SIZE, "%s", name);
    device->total = total;
    device->reserved = reserved;
    device->gi = 0xFFFFFFFF;
    device->recovery = -1;
    device->persistence = 1;
    return device;
}

static void read_line(struct world *world, char *line)
{
    char uuid[UUID_SIZE], other[UUID_SIZE], word[64], path[PATH_SIZE], flag[16], kind;
    unsigned gi, ci;
    u64 total, reserved, number = 1;
    int pid, name = 0;
    struct device *device;
    struct sample *sample = &world->sample[world->samples];
    struct xid *xid = &world->xid[world->xids];
    struct failure *failure = &world->fail[world->fails];
    struct mishap *mishap = &world->mishap[world->mishaps];

    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "init %d", &world->init) == 1 || sscanf(line, "every %d", &world->every) == 1 ||
        sscanf(line, "slow %d", &world->slow) == 1 || sscanf(line, "sticky %d", &world->sticky) == 1 ||
        sscanf(line, "cuda version %d", &world->version) == 1 ||
        sscanf(line, "cuda context %llu", &world->context) == 1 ||
        sscanf(line, "cuda rate %llu", &world->rate) == 1)
        return;
    if (world->mishaps < MOST_MISHAPS &&
        sscanf(line, "cuda %11s %63s %7s", mishap->kind, mishap->function, mishap->when) >= 2) {
        mishap->number = atoi(mishap->when);
        world->mishaps++;
    } else if (sscanf(line, "lacks %63s", word) == 1 && world->lacks < MOST_LACKS)
        strcpy(world->lack[world->lacks++], word);
    else if (sscanf(line, "gpu %95s %llu %llu %n", uuid, &total, &reserved, &name) == 3 && name) {
        if ((device = add(world, uuid, total, reserved, line + name)) != NULL)
            device->index = (unsigned)world->gpus++;
    } else if (sscanf(line, "mig %95s %95s %u %u %llu %llu %n", other, uuid, &gi, &ci, &total,
                      &reserved, &name) == 6 &&
               name) {
        if ((device = find(world, other)) != NULL)
            device->migmode = 1;
        if ((device = add(world, uuid, total, reserved, line + name)) != NULL) {
            strcpy(device->parent, other);
            device->is_mig = 1;
            device->gi = gi;
            device->ci = ci;
        }
    } else if (sscanf(line, "proc %95s %d %63s %c %15s", uuid, &pid, word, &kind, flag) == 5) {
        if (strcmp(flag, "stays") == 0 || start_of(pid))
            list_process(world, uuid, pid, word[0] == '?' ? ~0ULL : strtoull(word, NULL, 10), kind);
    } else if (world->samples < MOST_SAMPLES &&
               sscanf(line, "work %95s %u %u %llu", sample->uuid, &sample->pid, &sample->percent,
                      &sample->stamp) == 4) {
        world->samples++;
    } else if (world->xids < MOST_XIDS &&
               sscanf(line, "xid %llu %95s %llu %63s", &xid->serial, xid->uuid, &xid->number,
                      word) == 4) {
        xid->gi = word[0] == '-' ? 0xFFFFFFFF : (unsigned)strtoul(word, NULL, 10);
        world->xids++;
    } else if (world->fails < MOST_FAILS &&
               sscanf(line, "fails %95s %63s %d", failure->uuid, failure->function,
                      &failure->code) == 3) {
        world->fails++;
    } else if (sscanf(line, "file %95s %255s", uuid, path) == 2) {
        if ((device = find(world, uuid)) != NULL)
            strcpy(device->file, path);
    } else if (sscanf(line, "%15s %95s %llu", flag, uuid, &number) >= 2 &&
               (device = find(world, uuid)) != NULL) {
        for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++)
            if (strcmp(flag, NUMBERS[i].name) == 0)
                *(int *)((char *)device + NUMBERS[i].place) = (int)number;
        if (strcmp(flag, "extra") == 0)
            device->extra = number;
    }
}

/* Whether there is a state file. */
static int read_world(struct world *world)
{
    char *line = NULL;
    size_t room = 0;
    const char *path = getenv("NVML_STUB_STATE");
    FILE *file = path == NULL ? NULL : fopen(path, "re");

    memset(world, 0, sizeof *world);
    world->version = 13000;
    world->context = 256ULL << 20;
    if (file == NULL)
        return 0;
    while (getline(&line, &room, file) >= 0)
        read_line(world, line);
    free(line);
    fclose(file);
    return 1;
}

/* ---- the files of the processes that use the CUDA double ---- */

/* A file in their directory. */
static void path_of(char *path, size_t size, const char *name)
{
    const char *state = getenv("NVML_STUB_STATE");
    snprintf(path, size, "%s.procs/%s", state == NULL ? "/nonexistent" : state, name);
}

/* What the file of a process that lives tells. */
static int read_process(const char *name, struct process *process)
{
    char path[4200], line[256];
    int end = 0;

    memset(process, 0, sizeof *process);
    if (sscanf(name, "%d.%llu%n", &process->pid, &process->start, &end) != 2 || name[end] ||
        start_of(process->pid) != process->start)
        return 0;
    path_of(path, sizeof path, name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL) {
        struct holding *holding = &process->holding[process->holdings];
        sscanf(line, "state %d", &process->state);
        sscanf(line, "stuck %d", &process->stuck);
        sscanf(line, "busy %llu", &process->busy_until);
        if (process->holdings < MOST_GPUS - 1 && sscanf(line, "mem %95s %llu %llu", holding->uuid,
                                                        &holding->context, &holding->memory) == 3)
            process->holdings++;
    }
    fclose(file);
    return 1;
}

/* Whoever is not checkpointed is on the lists of its devices. */
static void list_processes(struct world *world)
{
    char folder[4200];
    struct process process;
    struct dirent *entry;

    path_of(folder, sizeof folder, "");
    DIR *listing = opendir(folder);
    while (listing != NULL && (entry = readdir(listing)) != NULL)
        if (read_process(entry->d_name, &process) && process.state != CHECKPOINTED)
            for (int i = 0; i < process.holdings; i++)
                list_process(world, process.holding[i].uuid, process.pid,
                             process.holding[i].context + process.holding[i].memory, 'C');
    if (listing != NULL)
        closedir(listing);
}

static u64 used_by_processes(const struct world *world, const struct device *device)
{
    u64 sum = 0;
    for (int i = 0; i < world->entries; i++) {
        const struct entry *entry = &world->entry[i];
        int earlier = 0;
        if (strcmp(entry->uuid, device->uuid) != 0 || entry->memory == ~0ULL)
            continue;
        for (int j = 0; j < i; j++) /* one process on two lists holds its memory once */
            earlier |= world->entry[j].pid == entry->pid && world->entry[j].kind != entry->kind &&
                       strcmp(world->entry[j].uuid, device->uuid) == 0;
        if (!earlier)
            sum += entry->memory;
    }
    return sum;
}

/* ---- what a control group may have ---- */

/* Whether a process is in this group, or in one below it. */
static int is_in_group(int pid, const char *group)
{
    static char top[256]; /* where the groups are: it is read once, as it is needed often */
    char path[64], line[4096] = "", whole[8192] = "";
    size_t length = strlen(group);
    struct mntent *mount;
    FILE *mounts = top[0] ? NULL : setmntent("/proc/self/mounts", "re");
    while (mounts != NULL && (mount = getmntent(mounts)) != NULL)
        if (strcmp(mount->mnt_type, "cgroup2") == 0)
            snprintf(top, sizeof top, "%s", mount->mnt_dir);
    if (mounts != NULL)
        endmntent(mounts);
    snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file))
        if (strncmp(line, "0::", 3) == 0)
            snprintf(whole, sizeof whole, "%s%.*s", top, (int)strcspn(line + 3, "\n"), line + 3);
    if (file != NULL)
        fclose(file);
    return strncmp(whole, group, length) == 0 && (whole[length] == '/' || whole[length] == 0);
}

static u64 used_by_group(const struct world *world, const struct device *device, const char *group)
{
    struct world theirs = *world;
    theirs.entries = 0;
    for (int i = 0; i < world->entries; i++)
        if (strcmp(world->entry[i].uuid, device->uuid) == 0 &&
            is_in_group((int)world->entry[i].pid, group))
            theirs.entry[theirs.entries++] = world->entry[i];
    return used_by_processes(&theirs, device) + ((u64)device->grouped << 20);
}

/* The file with a line for each device and group: UUID SOFT HARD GROUP. */
static FILE *open_limits(const char *more, const char *mode)
{
    char path[4200];
    snprintf(path, sizeof path, "%s.limits%s", getenv("NVML_STUB_STATE"), more);
    return fopen(path, mode);
}
