/* librccl.so on NVIDIA GPUs: the functions of RCCL that the backend calls, forwarded to NCCL.

   RCCL has NCCL's interface, down to the numbers, and HIP's streams are CUDA's here. NCCL is not
   part of this library: whoever loaded libnccl.so.2 before decides which one it is, or the loader.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>

#include "hip_abi.h"

enum { SYSTEM_ERROR = 2 }; /* ncclSystemError */

typedef struct {
  char internal[128];
} UniqueId;

static void* nccl;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

static void open_nccl(void) {
  nccl = dlopen("libnccl.so.2", RTLD_NOW);
  if (!nccl) fprintf(stderr, "RCCL on NVIDIA: %s\n", dlerror());
}

static void* find(const char* symbol) {
  pthread_once(&opened, open_nccl);
  return nccl ? dlsym(nccl, symbol) : NULL;
}

#define FORWARD(name, parameters, arguments)                       \
  HIP_API int name parameters {                                    \
    int(*function) parameters;                                     \
    if (!(*(void**)& function = find(#name))) return SYSTEM_ERROR; \
    return function arguments;                                     \
  }

FORWARD(ncclGetVersion, (int* version), (version))
FORWARD(ncclGetUniqueId, (UniqueId * id), (id))
FORWARD(ncclCommInitRank, (void** group, int ranks, UniqueId id, int rank),
        (group, ranks, id, rank))
FORWARD(ncclCommDestroy, (void* group), (group))
FORWARD(ncclCommAbort, (void* group), (group))
FORWARD(ncclAllReduce,
        (const void* from, void* to, size_t count, int type, int operation, void* group,
         void* stream),
        (from, to, count, type, operation, group, stream))
FORWARD(ncclAllGather,
        (const void* from, void* to, size_t count, int type, void* group, void* stream),
        (from, to, count, type, group, stream))
