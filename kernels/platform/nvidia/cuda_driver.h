/* The part of the CUDA driver API this library calls. It is declared here, not included, so that it
   builds without CUDA; libcuda.so.1, which comes with the driver, is opened at the first call. */
#pragma once

#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st* CUcontext;
typedef struct CUstream_st* CUstream;
typedef struct CUevent_st* CUevent;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUgraph_st* CUgraph;
typedef struct CUgraphExec_st* CUgraphExec;

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_STUB_LIBRARY = 34,
  CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
  CUDA_ERROR_INVALID_PTX = 218,
  CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
  CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  CUDA_ERROR_CONTAINED = 226,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
  CUDA_ERROR_INVALID_PC = 718,
  CUDA_ERROR_TENSOR_MEMORY_LEAK = 721,
  CUDA_ERROR_SYSTEM_NOT_READY = 802,
  CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
  CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
  CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
  CUDA_ERROR_EXTERNAL_DEVICE = 911,
};

enum {
  CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
  CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
  CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
  CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
};
enum { CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
enum { CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
enum { CU_JIT_ERROR_LOG_BUFFER = 5, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6 };

typedef struct {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int programmatic_stream_serialization;
  } value;
} CUlaunchAttribute;

typedef struct {
  unsigned grid[3], block[3];
  unsigned shared_bytes;
  CUstream stream;
  CUlaunchAttribute* attributes;
  unsigned attribute_count;
} CUlaunchConfig;

/* X(member of `cuda`, exported symbol, parameters) */
#define CUDA_FUNCTIONS(X)                                                                       \
  X(Init, cuInit, (unsigned))                                                                   \
  X(DriverGetVersion, cuDriverGetVersion, (int*))                                               \
  X(DeviceGetCount, cuDeviceGetCount, (int*))                                                   \
  X(DeviceGet, cuDeviceGet, (CUdevice*, int))                                                   \
  X(DeviceGetName, cuDeviceGetName, (char*, int, CUdevice))                                     \
  X(DeviceGetAttribute, cuDeviceGetAttribute, (int*, int, CUdevice))                            \
  X(DeviceTotalMem, cuDeviceTotalMem_v2, (size_t*, CUdevice))                                   \
  X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext*, CUdevice))                   \
  X(CtxSetCurrent, cuCtxSetCurrent, (CUcontext))                                                \
  X(CtxSynchronize, cuCtxSynchronize, (void))                                                   \
  X(MemAlloc, cuMemAlloc_v2, (CUdeviceptr*, size_t))                                            \
  X(MemFree, cuMemFree_v2, (CUdeviceptr))                                                       \
  X(MemHostAlloc, cuMemHostAlloc, (void**, size_t, unsigned))                                   \
  X(MemFreeHost, cuMemFreeHost, (void*))                                                        \
  X(MemHostRegister, cuMemHostRegister_v2, (void*, size_t, unsigned))                           \
  X(MemHostUnregister, cuMemHostUnregister, (void*))                                            \
  X(MemGetInfo, cuMemGetInfo_v2, (size_t*, size_t*))                                            \
  X(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void*, size_t, CUstream))        \
  X(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void*, CUdeviceptr, size_t, CUstream))              \
  X(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))        \
  X(MemsetD8Async, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))             \
  X(StreamCreate, cuStreamCreate, (CUstream*, unsigned))                                        \
  X(StreamDestroy, cuStreamDestroy_v2, (CUstream))                                              \
  X(StreamSynchronize, cuStreamSynchronize, (CUstream))                                         \
  X(StreamWaitEvent, cuStreamWaitEvent, (CUstream, CUevent, unsigned))                          \
  X(StreamBeginCapture, cuStreamBeginCapture_v2, (CUstream, int))                               \
  X(StreamEndCapture, cuStreamEndCapture, (CUstream, CUgraph*))                                 \
  X(EventCreate, cuEventCreate, (CUevent*, unsigned))                                           \
  X(EventDestroy, cuEventDestroy_v2, (CUevent))                                                 \
  X(EventRecord, cuEventRecord, (CUevent, CUstream))                                            \
  X(EventQuery, cuEventQuery, (CUevent))                                                        \
  X(EventSynchronize, cuEventSynchronize, (CUevent))                                            \
  X(EventElapsedTime, cuEventElapsedTime, (float*, CUevent, CUevent))                           \
  X(ModuleLoadDataEx, cuModuleLoadDataEx, (CUmodule*, const void*, unsigned, int*, void**))     \
  X(ModuleUnload, cuModuleUnload, (CUmodule))                                                   \
  X(ModuleGetFunction, cuModuleGetFunction, (CUfunction*, CUmodule, const char*))               \
  X(FuncSetAttribute, cuFuncSetAttribute, (CUfunction, int, int))                               \
  X(OccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor,     \
    (int*, CUfunction, int, size_t))                                                            \
  X(LaunchKernelEx, cuLaunchKernelEx, (const CUlaunchConfig*, CUfunction, void**, void**))      \
  X(FuncGetParamInfo, cuFuncGetParamInfo, (CUfunction, size_t, size_t*, size_t*))               \
  X(GraphInstantiate, cuGraphInstantiateWithFlags, (CUgraphExec*, CUgraph, unsigned long long)) \
  X(GraphLaunch, cuGraphLaunch, (CUgraphExec, CUstream))                                        \
  X(GraphDestroy, cuGraphDestroy, (CUgraph))                                                    \
  X(GraphExecDestroy, cuGraphExecDestroy, (CUgraphExec))

struct CudaDriver {
#define X(member, symbol, parameters) CUresult(*member) parameters;
  CUDA_FUNCTIONS(X)
#undef X
};

/* Filled in once, by enter_device() or device_count(). */
extern struct CudaDriver cuda;
