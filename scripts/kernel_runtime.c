/* What a kernel's library needs beside the code that Numba compiled.

   The memory that code compiled by Numba allocates, as numba/core/runtime/nrt.cpp does it for code in a process that has
   imported Numba. Compiled code counts references itself, and reads "references" and "data". */

#include <stdint.h>
#include <stdlib.h>

typedef void (*destructor)(void *data, size_t size, void *info);

typedef struct {
    size_t references;
    destructor destroy;
    void *info;
    void *data;
    size_t size;
    void *allocator;
} memory;

memory *NRT_MemInfo_alloc_aligned(size_t size, uint32_t alignment)
{
    memory *allocated = size < SIZE_MAX / 2 ? malloc(sizeof(memory) + alignment + size) : NULL;
    if (allocated == NULL)
        return NULL;
    uintptr_t first = (uintptr_t)(allocated + 1) + alignment - 1;
    *allocated = (memory){.references = 1, .data = (void *)(first - first % alignment), .size = size};
    return allocated;
}

memory *NRT_MemInfo_new_varsize_dtor(size_t size, destructor destroy)
{
    memory *allocated = NRT_MemInfo_alloc_aligned(size, 16);
    if (allocated != NULL)
        allocated->destroy = destroy;
    return allocated;
}

void NRT_MemInfo_call_dtor(memory *allocated)
{
    if (allocated->destroy != NULL)
        allocated->destroy(allocated->data, allocated->size, allocated->info);
    free(allocated);
}

/* Returns whether this processor has the instructions for which scripts/compile-kernels compiles: x86-64-v3, whose name
   GCC 11 and Clang 14 do not know. Processors with these four features have the others. */
__attribute__((visibility("default"))) int runs_here(void)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}
