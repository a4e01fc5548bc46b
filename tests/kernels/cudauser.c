/* What a package of R's or Julia's is in: a library that uses the CUDA driver, here 1 GiB of it. */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#define GIB (1024UL * 1024 * 1024)

static void *driver;
static unsigned long long block;
static size_t length;

/* Writes a text to the GPU. */
void fill(char **text, int *failed)
{
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = dlsym(driver, "cuInit");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = dlsym(driver, "cuCtxSetCurrent");
    int (*allocate)(unsigned long long *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    int (*put)(unsigned long long, const void *, size_t) = dlsym(driver, "cuMemcpyHtoD_v2");
    void *context;
    length = strlen(*text);
    *failed |= init(0);
    *failed |= retain(&context, 0);
    *failed |= set(context);
    *failed |= allocate(&block, GIB);
    *failed |= put(block, *text, length);
}

/* The sum of its bytes, as they are on the GPU now. */
void checksum(int *sum, int *failed)
{
    int (*get)(void *, unsigned long long, size_t) = dlsym(driver, "cuMemcpyDtoH_v2");
    unsigned char text[256] = {0};
    *failed |= get(text, block, length);
    for (size_t at = 0; at < length; at++)
        *sum += text[at];
}
