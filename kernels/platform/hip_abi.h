/* The slice of the HIP 7 runtime's binary interface that hip-python 10 uses, for libraries that
   stand in for libamdhip64.so. C and C++. Numbers and layouts are those of hip_runtime_api.h. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define HIP_API extern "C" __attribute__((visibility("default")))
#else
#define HIP_API __attribute__((visibility("default")))
#endif

typedef int hipError_t;

/* X(name without "hip", number, text) */
#define HIP_ERRORS(X)                                                                          \
  X(Success, 0, "no error")                                                                    \
  X(ErrorInvalidValue, 1, "invalid argument")                                                  \
  X(ErrorOutOfMemory, 2, "out of memory")                                                      \
  X(ErrorNotInitialized, 3, "initialization error")                                            \
  X(ErrorInvalidConfiguration, 9, "invalid configuration argument")                            \
  X(ErrorInvalidDevicePointer, 17, "invalid device pointer")                                   \
  X(ErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                      \
  X(ErrorInvalidDeviceFunction, 98, "invalid device function")                                 \
  X(ErrorNoDevice, 100, "no ROCm-capable device is detected")                                  \
  X(ErrorInvalidDevice, 101, "invalid device ordinal")                                         \
  X(ErrorInvalidImage, 200, "device kernel image is invalid")                                  \
  X(ErrorInvalidContext, 201, "invalid device context")                                        \
  X(ErrorNoBinaryForGpu, 209, "no kernel image is available for execution on the device")      \
  X(ErrorFileNotFound, 301, "file not found")                                                  \
  X(ErrorSharedObjectInitFailed, 303, "shared object initialization failed")                   \
  X(ErrorInvalidHandle, 400, "invalid resource handle")                                        \
  X(ErrorNotFound, 500, "named symbol not found")                                              \
  X(ErrorNotReady, 600, "device not ready")                                                    \
  X(ErrorIllegalAddress, 700, "an illegal memory access was encountered")                      \
  X(ErrorLaunchOutOfResources, 701, "too many resources requested for launch")                 \
  X(ErrorLaunchTimeOut, 702, "the launch timed out and was terminated")                        \
  X(ErrorPeerAccessAlreadyEnabled, 704, "peer access is already enabled")                      \
  X(ErrorHostMemoryAlreadyRegistered, 712, "part or all of the memory is registered already")  \
  X(ErrorHostMemoryNotRegistered, 713, "pointer does not correspond to a registered region")   \
  X(ErrorLaunchFailure, 719, "unspecified launch failure")                                     \
  X(ErrorNotSupported, 801, "operation not supported")                                         \
  X(ErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing")    \
  X(ErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error in capture") \
  X(ErrorStreamCaptureMerge, 902, "operation would merge two separate captures")               \
  X(ErrorStreamCaptureUnmatched, 903, "capture was not initiated in this stream")              \
  X(ErrorStreamCaptureUnjoined, 904, "capturing stream has unjoined work")                     \
  X(ErrorStreamCaptureImplicit, 906,                                                           \
    "operation would make the legacy stream depend on a "                                      \
    "capturing blocking stream")                                                               \
  X(ErrorUnknown, 999, "unknown error")

enum {
#define X(name, number, text) hip##name = number,
  HIP_ERRORS(X)
#undef X
};

static inline const char* hip_error_name(hipError_t error) {
  switch (error) {
#define X(name, number, text) \
  case number: return "hip" #name;
    HIP_ERRORS(X)
#undef X
  }
  return "hipErrorUnknown";
}

static inline const char* hip_error_text(hipError_t error) {
  switch (error) {
#define X(name, number, text) \
  case number: return text;
    HIP_ERRORS(X)
#undef X
  }
  return "unrecognized error code";
}

enum {
  hipMemcpyHostToHost,
  hipMemcpyHostToDevice,
  hipMemcpyDeviceToHost,
  hipMemcpyDeviceToDevice,
  hipMemcpyDefault
};

enum { hipStreamDefault = 0, hipStreamNonBlocking = 1 };
enum { hipEventDisableTiming = 2 };
enum { hipStreamCaptureModeGlobal, hipStreamCaptureModeThreadLocal, hipStreamCaptureModeRelaxed };
enum {
  hipStreamCaptureStatusNone,
  hipStreamCaptureStatusActive,
  hipStreamCaptureStatusInvalidated
};

/* Keys of the `extra` argument of hipModuleLaunchKernel. CUDA ends the list with 0 instead. */
#define HIP_LAUNCH_PARAM_BUFFER_POINTER ((void*)1)
#define HIP_LAUNCH_PARAM_BUFFER_SIZE ((void*)2)
#define HIP_LAUNCH_PARAM_END ((void*)3)

/* hipDeviceAttribute_t, as far as it has a meaning on every platform. */
enum {
  hipDeviceAttributeAccessPolicyMaxWindowSize = 1,
  hipDeviceAttributeAsyncEngineCount = 2,
  hipDeviceAttributeCanMapHostMemory = 3,
  hipDeviceAttributeCanUseHostPointerForRegisteredMem = 4,
  hipDeviceAttributeClockRate = 5,
  hipDeviceAttributeComputeMode = 6,
  hipDeviceAttributeComputePreemptionSupported = 7,
  hipDeviceAttributeConcurrentKernels = 8,
  hipDeviceAttributeConcurrentManagedAccess = 9,
  hipDeviceAttributeCooperativeLaunch = 10,
  hipDeviceAttributeDeviceOverlap = 12,
  hipDeviceAttributeGlobalL1CacheSupported = 14,
  hipDeviceAttributeIntegrated = 16,
  hipDeviceAttributeIsMultiGpuBoard = 17,
  hipDeviceAttributeKernelExecTimeout = 18,
  hipDeviceAttributeL2CacheSize = 19,
  hipDeviceAttributeLocalL1CacheSupported = 20,
  hipDeviceAttributeComputeCapabilityMajor = 23,
  hipDeviceAttributeManagedMemory = 24,
  hipDeviceAttributeMaxBlocksPerMultiProcessor = 25,
  hipDeviceAttributeMaxBlockDimX = 26,
  hipDeviceAttributeMaxBlockDimY = 27,
  hipDeviceAttributeMaxBlockDimZ = 28,
  hipDeviceAttributeMaxGridDimX = 29,
  hipDeviceAttributeMaxGridDimY = 30,
  hipDeviceAttributeMaxGridDimZ = 31,
  hipDeviceAttributeMaxThreadsPerBlock = 56,
  hipDeviceAttributeMaxThreadsPerMultiProcessor = 57,
  hipDeviceAttributeMaxPitch = 58,
  hipDeviceAttributeMemoryBusWidth = 59,
  hipDeviceAttributeMemoryClockRate = 60,
  hipDeviceAttributeComputeCapabilityMinor = 61,
  hipDeviceAttributeMultiprocessorCount = 63,
  hipDeviceAttributePageableMemoryAccess = 65,
  hipDeviceAttributePciBusId = 67,
  hipDeviceAttributePciDeviceId = 68,
  hipDeviceAttributePciDomainId = 69,
  hipDeviceAttributeMaxRegistersPerBlock = 71,
  hipDeviceAttributeMaxRegistersPerMultiprocessor = 72,
  hipDeviceAttributeReservedSharedMemPerBlock = 73,
  hipDeviceAttributeMaxSharedMemoryPerBlock = 74,
  hipDeviceAttributeSharedMemPerBlockOptin = 75,
  hipDeviceAttributeSharedMemPerMultiprocessor = 76,
  hipDeviceAttributeStreamPrioritiesSupported = 78,
  hipDeviceAttributeTccDriver = 80,
  hipDeviceAttributeTotalConstantMemory = 83,
  hipDeviceAttributeUnifiedAddressing = 85,
  hipDeviceAttributeWarpSize = 87,
  hipDeviceAttributeMemoryPoolsSupported = 88,
  hipDeviceAttributeVirtualMemoryManagementSupported = 89,
  hipDeviceAttributeHostRegisterSupported = 90,
  hipDeviceAttributeMaxSharedMemoryPerMultiprocessor = 10002,
  hipDeviceAttributePhysicalMultiProcessorCount = 10015,
  hipDeviceAttributeWallClockRate = 10017,
};

/* hipDeviceProp_tR0600, which hipGetDeviceProperties resolves to. */
typedef struct hipDeviceProp_tR0600 {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned luidDeviceNodeMask;
  size_t totalGlobalMem, sharedMemPerBlock;
  int regsPerBlock, warpSize;
  size_t memPitch;
  int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate;
  size_t totalConstMem;
  int major, minor;
  size_t textureAlignment, texturePitchAlignment;
  int deviceOverlap, multiProcessorCount, kernelExecTimeoutEnabled, integrated;
  int canMapHostMemory, computeMode;
  int maxTexture1D, maxTexture1DMipmap, maxTexture1DLinear, maxTexture2D[2];
  int maxTexture2DMipmap[2], maxTexture2DLinear[3], maxTexture2DGather[2];
  int maxTexture3D[3], maxTexture3DAlt[3], maxTextureCubemap, maxTexture1DLayered[2];
  int maxTexture2DLayered[3], maxTextureCubemapLayered[2];
  int maxSurface1D, maxSurface2D[2], maxSurface3D[3], maxSurface1DLayered[2];
  int maxSurface2DLayered[3], maxSurfaceCubemap, maxSurfaceCubemapLayered[2];
  size_t surfaceAlignment;
  int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver;
  int asyncEngineCount, unifiedAddressing, memoryClockRate, memoryBusWidth, l2CacheSize;
  int persistingL2CacheMaxSize, maxThreadsPerMultiProcessor, streamPrioritiesSupported;
  int globalL1CacheSupported, localL1CacheSupported;
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID;
  int hostNativeAtomicSupported, singleToDoublePrecisionPerfRatio, pageableMemoryAccess;
  int concurrentManagedAccess, computePreemptionSupported, canUseHostPointerForRegisteredMem;
  int cooperativeLaunch, cooperativeMultiDeviceLaunch;
  size_t sharedMemPerBlockOptin;
  int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost;
  int maxBlocksPerMultiProcessor, accessPolicyMaxWindowSize;
  size_t reservedSharedMemPerBlock;
  int hostRegisterSupported, sparseHipArraySupported, hostRegisterReadOnlySupported;
  int timelineSemaphoreInteropSupported, memoryPoolsSupported, gpuDirectRDMASupported;
  unsigned gpuDirectRDMAFlushWritesOptions;
  int gpuDirectRDMAWritesOrdering;
  unsigned memoryPoolSupportedHandleTypes;
  int deferredMappingHipArraySupported, ipcEventSupported, clusterLaunch;
  int unifiedFunctionPointers, reserved[63], hipReserved[32];
  char gcnArchName[256];
  size_t maxSharedMemoryPerMultiProcessor;
  int clockInstructionRate;
  unsigned arch, *hdpMemFlushCntl, *hdpRegFlushCntl;
  int cooperativeMultiDeviceUnmatched[4], isLargeBar, asicRevision;
} hipDeviceProp_t;

#ifdef __cplusplus
static_assert(sizeof(hipDeviceProp_t) == 1472, "hipDeviceProp_tR0600");
#else
_Static_assert(sizeof(hipDeviceProp_t) == 1472, "hipDeviceProp_tR0600");
#endif
