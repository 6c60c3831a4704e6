/* libamdhip64.so on NVIDIA GPUs: HIP's runtime and module API forwarded to the CUDA driver.

   HIP has always had NVIDIA as its second platform, as a header that turns hipX into cudaX at
   compile time. Python binds to a library instead, so here it is one. */
#define _GNU_SOURCE
#include "nvidia.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

enum { MAX_DEVICES = 16 };

struct CudaDriver cuda;

static int count;
static hipError_t open_error = hipErrorNoDevice;
static CUdevice devices[MAX_DEVICES];
static CUcontext contexts[MAX_DEVICES];
static pthread_once_t opened = PTHREAD_ONCE_INIT;
static pthread_mutex_t contexts_mutex = PTHREAD_MUTEX_INITIALIZER;

/* HIP's current device belongs to the thread, and so does CUDA's current context. */
static _Thread_local int current_device;
static _Thread_local int bound_device = -1;

static void open_driver(void) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return; /* no NVIDIA driver: no devices */
#define X(member, symbol, parameters)                                                \
  if (!(*(void**)& cuda.member = dlsym(library, #symbol))) {                         \
    fprintf(stderr, "HIP on NVIDIA: the driver is too old, it lacks " #symbol "\n"); \
    open_error = hipErrorNotSupported;                                               \
    return;                                                                          \
  }
  CUDA_FUNCTIONS(X)
#undef X
  const CUresult result = cuda.Init(0);
  if (result) {
    open_error = hip_error(result);
    return;
  }
  int found = 0;
  cuda.DeviceGetCount(&found);
  if (found > MAX_DEVICES) found = MAX_DEVICES;
  for (int i = 0; i < found; i++) cuda.DeviceGet(&devices[i], i);
  count = found;
  if (found) open_error = hipSuccess;
}

int device_count(hipError_t* error) {
  pthread_once(&opened, open_driver);
  *error = open_error;
  return count;
}

CUdevice cuda_device(int ordinal) { return devices[ordinal]; }

static hipError_t retain_context(int ordinal) {
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&contexts_mutex);
  if (!contexts[ordinal]) {
    result = cuda.DevicePrimaryCtxRetain(&contexts[ordinal], devices[ordinal]);
  }
  pthread_mutex_unlock(&contexts_mutex);
  return hip_error(result);
}

hipError_t enter_device(void) {
  hipError_t error;
  if (!device_count(&error)) return error;
  if (bound_device == current_device) return hipSuccess;
  error = retain_context(current_device);
  if (!error) error = hip_error(cuda.CtxSetCurrent(contexts[current_device]));
  if (!error) bound_device = current_device;
  return error;
}

hipError_t hip_error(CUresult result) {
  switch (result) {
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION: return hipErrorInvalidImage;
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: return hipErrorNoDevice;
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE: return hipErrorIllegalAddress;
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_HARDWARE_STACK_ERROR: return hipErrorLaunchFailure;
    /* HIP has no such number, or means something else by it; the device is lost to this process. */
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_EXTERNAL_DEVICE: return hipErrorUnknown;
    default:
      return result >= CUDA_ERROR_MPS_CONNECTION_FAILED &&
                     result <= CUDA_ERROR_MPS_CLIENT_TERMINATED
                 ? hipErrorUnknown
                 : result;
  }
}

HIP_API hipError_t hipGetDeviceCount(int* result) {
  REQUIRE(result);
  hipError_t error;
  *result = device_count(&error);
  return error;
}

HIP_API hipError_t hipSetDevice(int ordinal) {
  hipError_t error;
  const int devices_found = device_count(&error);
  if (error) return error;
  if (ordinal < 0 || ordinal >= devices_found) return hipErrorInvalidDevice;
  current_device = ordinal;
  return enter_device();
}
