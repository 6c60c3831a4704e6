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

HIP_API hipError_t hipMallocAsync(void** pointer, size_t bytes, CUstream stream) {
  REQUIRE(pointer);
  *pointer = NULL;
  if (!bytes) return hipSuccess;
  FORWARD(MemAllocAsync((CUdeviceptr*)pointer, bytes, stream));
}

HIP_API hipError_t hipFreeAsync(void* pointer, CUstream stream) {
  if (!pointer) return hipSuccess;
  FORWARD(MemFreeAsync(device_pointer(pointer), stream));
}

HIP_API hipError_t hipMallocManaged(void** pointer, size_t bytes, unsigned flags) {
  (void)flags;
  REQUIRE(pointer);
  *pointer = NULL;
  if (!bytes) return hipSuccess;
  FORWARD(MemAllocManaged((CUdeviceptr*)pointer, bytes, CU_MEM_ATTACH_GLOBAL));
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

HIP_API hipError_t hipHostGetDevicePointer(void** device, void* pointer, unsigned flags) {
  REQUIRE(device);
  FORWARD(MemHostGetDevicePointer((CUdeviceptr*)device, pointer, flags));
}

HIP_API hipError_t hipHostRegister(void* pointer, size_t bytes, unsigned flags) {
  FORWARD(MemHostRegister(pointer, bytes, flags & HOST_PORTABLE_MAPPED_WRITECOMBINED));
}

HIP_API hipError_t hipHostUnregister(void* pointer) { FORWARD(MemHostUnregister(pointer)); }

HIP_API hipError_t hipMemGetInfo(size_t* available, size_t* total) {
  FORWARD(MemGetInfo(available, total));
}

HIP_API hipError_t hipMemcpy(void* to, const void* from, size_t bytes, int kind) {
  if (!bytes) return hipSuccess;
  switch (kind) {
    case hipMemcpyHostToHost:
    case hipMemcpyDefault: FORWARD(Memcpy(device_pointer(to), device_pointer(from), bytes));
    case hipMemcpyHostToDevice: FORWARD(MemcpyHtoD(device_pointer(to), from, bytes));
    case hipMemcpyDeviceToHost: FORWARD(MemcpyDtoH(to, device_pointer(from), bytes));
    case hipMemcpyDeviceToDevice:
      FORWARD(MemcpyDtoD(device_pointer(to), device_pointer(from), bytes));
    default: return answer(hipErrorInvalidMemcpyDirection);
  }
}

HIP_API hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind,
                                  CUstream stream) {
  if (!bytes) return hipSuccess;
  switch (kind) {
    case hipMemcpyHostToHost:
    case hipMemcpyDefault:
      FORWARD(MemcpyAsync(device_pointer(to), device_pointer(from), bytes, stream));
    case hipMemcpyHostToDevice: FORWARD(MemcpyHtoDAsync(device_pointer(to), from, bytes, stream));
    case hipMemcpyDeviceToHost: FORWARD(MemcpyDtoHAsync(to, device_pointer(from), bytes, stream));
    case hipMemcpyDeviceToDevice:
      FORWARD(MemcpyDtoDAsync(device_pointer(to), device_pointer(from), bytes, stream));
    default: return answer(hipErrorInvalidMemcpyDirection);
  }
}

HIP_API hipError_t hipMemcpyWithStream(void* to, const void* from, size_t bytes, int kind,
                                       CUstream stream) {
  const hipError_t error = hipMemcpyAsync(to, from, bytes, kind, stream);
  if (error) return error;
  FORWARD(StreamSynchronize(stream));
}

HIP_API hipError_t hipMemcpyHtoD(void* to, const void* from, size_t bytes) {
  return hipMemcpy(to, from, bytes, hipMemcpyHostToDevice);
}
HIP_API hipError_t hipMemcpyDtoH(void* to, void* from, size_t bytes) {
  return hipMemcpy(to, from, bytes, hipMemcpyDeviceToHost);
}
HIP_API hipError_t hipMemcpyDtoD(void* to, void* from, size_t bytes) {
  return hipMemcpy(to, from, bytes, hipMemcpyDeviceToDevice);
}
HIP_API hipError_t hipMemcpyHtoDAsync(void* to, const void* from, size_t bytes, CUstream stream) {
  return hipMemcpyAsync(to, from, bytes, hipMemcpyHostToDevice, stream);
}
HIP_API hipError_t hipMemcpyDtoHAsync(void* to, void* from, size_t bytes, CUstream stream) {
  return hipMemcpyAsync(to, from, bytes, hipMemcpyDeviceToHost, stream);
}
HIP_API hipError_t hipMemcpyDtoDAsync(void* to, void* from, size_t bytes, CUstream stream) {
  return hipMemcpyAsync(to, from, bytes, hipMemcpyDeviceToDevice, stream);
}

HIP_API hipError_t hipMemset(void* pointer, int value, size_t bytes) {
  if (!bytes) return hipSuccess;
  FORWARD(MemsetD8(device_pointer(pointer), (unsigned char)value, bytes));
}

HIP_API hipError_t hipMemsetAsync(void* pointer, int value, size_t bytes, CUstream stream) {
  if (!bytes) return hipSuccess;
  FORWARD(MemsetD8Async(device_pointer(pointer), (unsigned char)value, bytes, stream));
}

HIP_API hipError_t hipMemsetD8(void* pointer, unsigned char value, size_t bytes) {
  return hipMemset(pointer, value, bytes);
}

HIP_API hipError_t hipMemsetD8Async(void* pointer, unsigned char value, size_t bytes,
                                    CUstream stream) {
  return hipMemsetAsync(pointer, value, bytes, stream);
}

HIP_API hipError_t hipMemsetD32(void* pointer, int value, size_t count) {
  if (!count) return hipSuccess;
  FORWARD(MemsetD32(device_pointer(pointer), (unsigned)value, count));
}

HIP_API hipError_t hipMemsetD32Async(void* pointer, int value, size_t count, CUstream stream) {
  if (!count) return hipSuccess;
  FORWARD(MemsetD32Async(device_pointer(pointer), (unsigned)value, count, stream));
}
