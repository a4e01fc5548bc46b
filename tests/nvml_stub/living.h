/*
 * What both of our libraries know of processes: those that live, and the files of those that use the
 * CUDA double.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
enum { UUID_SIZE = 96, NAME_SIZE = 96 };
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

/* Whether `name`, of a file in the directory of the double's processes, is one's that lives. */
static int is_living(const char *name, int *pid, u64 *start)
{
    int end = 0;
    return sscanf(name, "%d.%llu%n", pid, start, &end) == 2 && !name[end] &&
           start_of(*pid) == *start;
}
