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
enum {
  DEVICE = 7,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  INVALID_VALUE = 1,
  NOT_FOUND = 500
};
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
  enum { WARP_SIZE = 10, MAJOR = 75, MINOR = 76 };
  *value = attribute == WARP_SIZE ? 32
           : attribute == MAJOR   ? 9
           : attribute == MINOR   ? 0
                                  : attribute;
  return device == DEVICE ? CUDA_SUCCESS : INVALID_DEVICE;
}
API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  return device == DEVICE ? HOST(hipDeviceTotalMem, (size_t*, int), bytes, 0) : INVALID_DEVICE;
}
API CUresult cuDeviceGetPCIBusId(char* id, int size, CUdevice device) {
  snprintf(id, (size_t)size, "0000:00:00.0");
  return device == DEVICE ? CUDA_SUCCESS : INVALID_DEVICE;
}
API CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  *can = 0;
  return device == DEVICE && peer == DEVICE ? CUDA_SUCCESS : INVALID_DEVICE;
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
API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return peer == context && !flags ? CUDA_SUCCESS : INVALID_VALUE;
}

API CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  return IN_CONTEXT(HOST(hipMalloc, (P, size_t), pointer, bytes));
}
API CUresult cuMemFree_v2(CUdeviceptr pointer) {
  return IN_CONTEXT(HOST(hipFree, (P), (P)pointer));
}
API CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream stream) {
  return IN_CONTEXT(HOST(hipMallocAsync, (P, size_t, P), pointer, bytes, stream));
}
API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  return IN_CONTEXT(HOST(hipFreeAsync, (P, P), (P)pointer, stream));
}
API CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned flags) {
  if (flags != CU_MEM_ATTACH_GLOBAL) return INVALID_VALUE;
  return IN_CONTEXT(HOST(hipMalloc, (P, size_t), pointer, bytes));
}
API CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  return IN_CONTEXT(HOST(hipHostMalloc, (P, size_t, unsigned), pointer, bytes, flags));
}
API CUresult cuMemFreeHost(void* pointer) { return IN_CONTEXT(HOST(hipHostFree, (P), pointer)); }
API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* pointer, unsigned flags) {
  return IN_CONTEXT(HOST(hipHostGetDevicePointer, (P, P, unsigned), device, pointer, flags));
}
API CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  (void)flags;
  return pointer && bytes ? CUDA_SUCCESS : INVALID_VALUE;
}
API CUresult cuMemHostUnregister(void* pointer) { return pointer ? CUDA_SUCCESS : INVALID_VALUE; }
API CUresult cuMemGetInfo_v2(size_t* available, size_t* total) {
  return IN_CONTEXT(HOST(hipMemGetInfo, (P, P), available, total));
}

enum { TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3, ANY = 4 };

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, int kind) {
  return IN_CONTEXT(HOST(hipMemcpy, (P, P, size_t, int), (P)to, (P)from, bytes, kind));
}
static CUresult copy_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, int kind,
                           CUstream stream) {
  return IN_CONTEXT(
      HOST(hipMemcpyAsync, (P, P, size_t, int, P), (P)to, (P)from, bytes, kind, stream));
}
API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy(to, from, bytes, ANY);
}
API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return copy(to, (CUdeviceptr)from, bytes, TO_DEVICE);
}
API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return copy((CUdeviceptr)to, from, bytes, TO_HOST);
}
API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy(to, from, bytes, ON_DEVICE);
}
API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_async(to, from, bytes, ANY, stream);
}
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy_async(to, (CUdeviceptr)from, bytes, TO_DEVICE, stream);
}
API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_async((CUdeviceptr)to, from, bytes, TO_HOST, stream);
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_async(to, from, bytes, ON_DEVICE, stream);
}
API CUresult cuMemsetD8_v2(CUdeviceptr pointer, unsigned char value, size_t count) {
  return IN_CONTEXT(HOST(hipMemset, (P, int, size_t), (P)pointer, value, count));
}
API CUresult cuMemsetD8Async(CUdeviceptr pointer, unsigned char value, size_t count,
                             CUstream stream) {
  return IN_CONTEXT(HOST(hipMemsetAsync, (P, int, size_t, P), (P)pointer, value, count, stream));
}
API CUresult cuMemsetD32_v2(CUdeviceptr pointer, unsigned value, size_t count) {
  return IN_CONTEXT(HOST(hipMemsetD32, (P, int, size_t), (P)pointer, (int)value, count));
}
API CUresult cuMemsetD32Async(CUdeviceptr pointer, unsigned value, size_t count, CUstream stream) {
  return IN_CONTEXT(
      HOST(hipMemsetD32Async, (P, int, size_t, P), (P)pointer, (int)value, count, stream));
}

API CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return IN_CONTEXT(HOST(hipStreamCreateWithFlags, (P, unsigned), stream, flags));
}
API CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  (void)priority;
  return cuStreamCreate(stream, flags);
}
API CUresult cuStreamDestroy_v2(CUstream stream) { return HOST(hipStreamDestroy, (P), stream); }
API CUresult cuStreamSynchronize(CUstream stream) {
  return IN_CONTEXT(HOST(hipStreamSynchronize, (P), stream));
}
API CUresult cuStreamQuery(CUstream stream) {
  return IN_CONTEXT(HOST(hipStreamQuery, (P), stream));
}
API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return IN_CONTEXT(HOST(hipStreamWaitEvent, (P, P, unsigned), stream, event, flags));
}
API CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void*), void* data) {
  return IN_CONTEXT(HOST(hipLaunchHostFunc, (P, void (*)(void*), P), stream, function, data));
}
API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
  return IN_CONTEXT(HOST(hipStreamBeginCapture, (P, int), stream, mode));
}
API CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return IN_CONTEXT(HOST(hipStreamEndCapture, (P, P), stream, graph));
}
API CUresult cuStreamIsCapturing(CUstream stream, int* status) {
  return IN_CONTEXT(HOST(hipStreamIsCapturing, (P, P), stream, status));
}

API CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return IN_CONTEXT(HOST(hipEventCreateWithFlags, (P, unsigned), event, flags));
}
API CUresult cuEventDestroy_v2(CUevent event) { return HOST(hipEventDestroy, (P), event); }
API CUresult cuEventRecord(CUevent event, CUstream stream) {
  return IN_CONTEXT(HOST(hipEventRecord, (P, P), event, stream));
}
API CUresult cuEventSynchronize(CUevent event) {
  return IN_CONTEXT(HOST(hipEventSynchronize, (P), event));
}
API CUresult cuEventQuery(CUevent event) { return IN_CONTEXT(HOST(hipEventQuery, (P), event)); }
API CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent stop) {
  return IN_CONTEXT(HOST(hipEventElapsedTime, (P, P, P), milliseconds, start, stop));
}

API CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, int* options,
                                void** values) {
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
API CUresult cuModuleGetGlobal_v2(CUdeviceptr* pointer, size_t* bytes, CUmodule module,
                                  const char* name) {
  (void)pointer, (void)bytes, (void)module, (void)name;
  return NOT_FOUND;
}
API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                            CUstream stream, void** parameters, void** extra) {
  if (extra) return INVALID_VALUE; /* its keys are CUDA's, not HIP's */
  return IN_CONTEXT(HOST(
      hipModuleLaunchKernel,
      (P, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, P, void**, void**),
      function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters,
      NULL));
}
API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
  return function && attribute >= 0 && value >= 0 ? CUDA_SUCCESS : INVALID_VALUE;
}
API CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction function) {
  return IN_CONTEXT(HOST(hipFuncGetAttribute, (P, int, P), value, attribute, function));
}
API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  return HOST(rf_host_argument, (P, size_t, P, P), function, index, offset, bytes);
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function,
                                                         int threads, size_t shared) {
  return IN_CONTEXT(HOST(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, (P, P, int, size_t),
                         blocks, function, threads, shared));
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph,
                                         unsigned long long flags) {
  return IN_CONTEXT(
      HOST(hipGraphInstantiateWithFlags, (P, P, unsigned long long), executable, graph, flags));
}
API CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  return IN_CONTEXT(HOST(hipGraphLaunch, (P, P), executable, stream));
}
API CUresult cuGraphUpload(CUgraphExec executable, CUstream stream) {
  return IN_CONTEXT(HOST(hipGraphUpload, (P, P), executable, stream));
}
API CUresult cuGraphDestroy(CUgraph graph) { return HOST(hipGraphDestroy, (P), graph); }
API CUresult cuGraphExecDestroy(CUgraphExec executable) {
  return HOST(hipGraphExecDestroy, (P), executable);
}
API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return HOST(hipGraphGetNodes, (P, P, P), graph, nodes, count);
}
