/* Allocation, copies and fills. */
#include "nvidia.h"

/* HIP has flags beyond these three, for the coherence of AMD's caches. */
enum { HOST_PORTABLE_MAPPED_WRITECOMBINED = 7 };

static CUdeviceptr device_pointer(const void* pointer) { return (CUdeviceptr)pointer; }

HIP_API hipError_t hipMalloc(void** pointer, size_t bytes) {
  REQUIRE(pointer);
  *pointer = NULL;
  if (!bytes) return hipSuccess;
  FORWARD(MemAlloc((CUdeviceptr*)pointer, bytes));
}

HIP_API hipError_t hipFree(void* pointer) {
  if (!pointer) return hipSuccess;
  FORWARD(MemFree(device_pointer(pointer)));
}

HIP_API hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned flags) {
  REQUIRE(pointer);
  *pointer = NULL;
  if (!bytes) return hipSuccess;
  FORWARD(MemHostAlloc(pointer, bytes, flags & HOST_PORTABLE_MAPPED_WRITECOMBINED));
}

HIP_API hipError_t hipHostFree(void* pointer) {
  if (!pointer) return hipSuccess;
  FORWARD(MemFreeHost(pointer));
}

HIP_API hipError_t hipHostRegister(void* pointer, size_t bytes, unsigned flags) {
  FORWARD(MemHostRegister(pointer, bytes, flags & HOST_PORTABLE_MAPPED_WRITECOMBINED));
}

HIP_API hipError_t hipHostUnregister(void* pointer) { FORWARD(MemHostUnregister(pointer)); }

HIP_API hipError_t hipMemGetInfo(size_t* available, size_t* total) {
  FORWARD(MemGetInfo(available, total));
}

HIP_API hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind,
                                  CUstream stream) {
  if (!bytes) return hipSuccess;
  switch (kind) {
    case hipMemcpyHostToDevice: FORWARD(MemcpyHtoDAsync(device_pointer(to), from, bytes, stream));
    case hipMemcpyDeviceToHost: FORWARD(MemcpyDtoHAsync(to, device_pointer(from), bytes, stream));
    case hipMemcpyDeviceToDevice:
      FORWARD(MemcpyDtoDAsync(device_pointer(to), device_pointer(from), bytes, stream));
    default: return hipErrorInvalidMemcpyDirection;
  }
}

HIP_API hipError_t hipMemcpy(void* to, const void* from, size_t bytes, int kind) {
  const hipError_t error = hipMemcpyAsync(to, from, bytes, kind, NULL);
  if (error) return error;
  FORWARD(StreamSynchronize(NULL));
}

HIP_API hipError_t hipMemsetAsync(void* pointer, int value, size_t bytes, CUstream stream) {
  if (!bytes) return hipSuccess;
  FORWARD(MemsetD8Async(device_pointer(pointer), (unsigned char)value, bytes, stream));
}
