/* libcuda.so.1 on top of the host platform: lets kernels/platform/nvidia be tested without a GPU.

   It implements the driver functions that library declares, with CUDA's conventions, by calling the
   HIP functions of the host platform, whose path is in RF_MOCK_HOST_LIBRARY. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"

#define API __attribute__((visibility("default")))

/* CUDA's handles are not HIP's ordinals; a caller that confuses them is noticed. */
enum { DEVICE = 7, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_VALUE = 1 };
static CUcontext const context = (CUcontext)0x77;
static _Thread_local CUcontext current;

static void* host(const char* name) {
  static void* library;
  if (!library) library = dlopen(getenv("RF_MOCK_HOST_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  void* function = library ? dlsym(library, name) : NULL;
  if (!function) {
    fprintf(stderr, "mock CUDA: the host platform has no %s\n", name);
    abort();
  }
  return function;
}

#define HOST(name, parameters, ...) (((int(*) parameters)host(#name))(__VA_ARGS__))

/* CUDA refuses to work without a current context, and so does this. */
#define IN_CONTEXT(call) (current == context ? (call) : INVALID_CONTEXT)

typedef void* P;

API CUresult cuInit(unsigned flags) { return flags ? INVALID_VALUE : CUDA_SUCCESS; }
API CUresult cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
API CUresult cuDeviceGetCount(int* count) { return *count = 1, CUDA_SUCCESS; }
API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = DEVICE;
  return ordinal ? INVALID_DEVICE : CUDA_SUCCESS;
}
API CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  snprintf(name, (size_t)size, "mock GPU");
  return device == DEVICE ? CUDA_SUCCESS : INVALID_DEVICE;
}
API CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_WARP_SIZE                  ? 32
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? 0
                                                                       : attribute;
  return device == DEVICE ? CUDA_SUCCESS : INVALID_DEVICE;
}
API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  size_t available;
  return device == DEVICE ? HOST(hipMemGetInfo, (P, P), &available, bytes) : INVALID_DEVICE;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext* result, CUdevice device) {
  *result = context;
  return device == DEVICE ? CUDA_SUCCESS : INVALID_DEVICE;
}
API CUresult cuCtxSetCurrent(CUcontext value) {
  current = value;
  return value == context ? CUDA_SUCCESS : INVALID_CONTEXT;
}
API CUresult cuCtxSynchronize(void) { return IN_CONTEXT(HOST(hipDeviceSynchronize, (void))); }

API CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  return IN_CONTEXT(HOST(hipMalloc, (P, size_t), pointer, bytes));
}
API CUresult cuMemFree_v2(CUdeviceptr pointer) {
  return IN_CONTEXT(HOST(hipFree, (P), (P)pointer));
}
API CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  return IN_CONTEXT(HOST(hipHostMalloc, (P, size_t, unsigned), pointer, bytes, flags));
}
API CUresult cuMemFreeHost(void* pointer) { return IN_CONTEXT(HOST(hipHostFree, (P), pointer)); }
API CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  (void)flags;
  return pointer && bytes ? CUDA_SUCCESS : INVALID_VALUE;
}
API CUresult cuMemHostUnregister(void* pointer) { return pointer ? CUDA_SUCCESS : INVALID_VALUE; }
API CUresult cuMemGetInfo_v2(size_t* available, size_t* total) {
  return IN_CONTEXT(HOST(hipMemGetInfo, (P, P), available, total));
}

enum { TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3 };

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, int kind, CUstream stream) {
  return IN_CONTEXT(
      HOST(hipMemcpyAsync, (P, P, size_t, int, P), (P)to, (P)from, bytes, kind, stream));
}
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy(to, (CUdeviceptr)from, bytes, TO_DEVICE, stream);
}
API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy((CUdeviceptr)to, from, bytes, TO_HOST, stream);
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(to, from, bytes, ON_DEVICE, stream);
}
API CUresult cuMemsetD8Async(CUdeviceptr pointer, unsigned char value, size_t count,
                             CUstream stream) {
  return IN_CONTEXT(HOST(hipMemsetAsync, (P, int, size_t, P), (P)pointer, value, count, stream));
}

API CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return IN_CONTEXT(HOST(hipStreamCreateWithFlags, (P, unsigned), stream, flags));
}
API CUresult cuStreamDestroy_v2(CUstream stream) { return HOST(hipStreamDestroy, (P), stream); }
API CUresult cuStreamSynchronize(CUstream stream) {
  return IN_CONTEXT(HOST(hipStreamSynchronize, (P), stream));
}
API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return IN_CONTEXT(HOST(hipStreamWaitEvent, (P, P, unsigned), stream, event, flags));
}
API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
  return IN_CONTEXT(HOST(hipStreamBeginCapture, (P, int), stream, mode));
}
API CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return IN_CONTEXT(HOST(hipStreamEndCapture, (P, P), stream, graph));
}

API CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return IN_CONTEXT(HOST(hipEventCreateWithFlags, (P, unsigned), event, flags));
}
API CUresult cuEventDestroy_v2(CUevent event) { return HOST(hipEventDestroy, (P), event); }
API CUresult cuEventRecord(CUevent event, CUstream stream) {
  return IN_CONTEXT(HOST(hipEventRecord, (P, P), event, stream));
}
API CUresult cuEventQuery(CUevent event) { return IN_CONTEXT(HOST(hipEventQuery, (P), event)); }
API CUresult cuEventSynchronize(CUevent event) {
  return IN_CONTEXT(HOST(hipEventSynchronize, (P), event));
}
API CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent stop) {
  return IN_CONTEXT(HOST(hipEventElapsedTime, (P, P, P), milliseconds, start, stop));
}

API CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, int* options,
                                void** values) {
  /* What stands before a library is as the text of its kernels. */
  static const char waiting[] = "griddepcontrol.wait";
  if (memcmp(image, waiting, sizeof waiting) == 0) image = (const char*)image + sizeof waiting;
  if (memcmp(image, "\177ELF", 4) == 0) {
    return IN_CONTEXT(HOST(hipModuleLoadData, (P, const void*), module, image));
  }
  for (unsigned i = 0; i < count; i++) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) strcpy(values[i], "mock CUDA compiles no PTX");
  }
  return CUDA_ERROR_INVALID_PTX;
}
API CUresult cuModuleUnload(CUmodule module) { return HOST(hipModuleUnload, (P), module); }
API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return IN_CONTEXT(HOST(hipModuleGetFunction, (P, P, const char*), function, module, name));
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function,
                                                         int threads, size_t shared) {
  return IN_CONTEXT(HOST(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, (P, P, int, size_t),
                         blocks, function, threads, shared));
}
static unsigned allowed_shared_bytes = 48 << 10; /* of the one kernel that is launched */
API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
  if (!function || attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0) {
    return INVALID_VALUE;
  }
  allowed_shared_bytes = (unsigned)value;
  return CUDA_SUCCESS;
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                              void** extra) {
  if (extra) return INVALID_VALUE; /* its keys are CUDA's, not HIP's */
  if (config->shared_bytes > allowed_shared_bytes) return INVALID_VALUE;
  for (unsigned i = 0; i < config->attribute_count; i++) {
    const CUlaunchAttribute* attribute = &config->attributes[i];
    if (attribute->id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION ||
        !attribute->value.programmatic_stream_serialization) {
      return INVALID_VALUE;
    }
    fprintf(stderr, "mock CUDA: launched early\n");
  }
  const unsigned *grid = config->grid, *block = config->block;
  return IN_CONTEXT(HOST(
      hipModuleLaunchKernel,
      (P, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, P, void**, void**),
      function, grid[0], grid[1], grid[2], block[0], block[1], block[2], config->shared_bytes,
      config->stream, parameters, NULL));
}
API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  return HOST(rf_host_argument, (P, size_t, P, P), function, index, offset, bytes);
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph,
                                         unsigned long long flags) {
  return IN_CONTEXT(
      flags ? INVALID_VALUE
            : HOST(hipGraphInstantiate, (P, P, P, P, size_t), executable, graph, NULL, NULL, 0));
}
API CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  return IN_CONTEXT(HOST(hipGraphLaunch, (P, P), executable, stream));
}
API CUresult cuGraphDestroy(CUgraph graph) { return HOST(hipGraphDestroy, (P), graph); }
API CUresult cuGraphExecDestroy(CUgraphExec executable) {
  return HOST(hipGraphExecDestroy, (P), executable);
}
