/* Devices: names, attributes, properties. */
#include <stdio.h>
#include <string.h>

#include "nvidia.h"

/* HIP's attribute -> CUDA's CUdevice_attribute; 0 where there is none. */
static int cuda_attribute(int attribute) {
  switch (attribute) {
    case hipDeviceAttributeAccessPolicyMaxWindowSize: return 109;
    case hipDeviceAttributeAsyncEngineCount: return 40;
    case hipDeviceAttributeCanMapHostMemory: return 19;
    case hipDeviceAttributeCanUseHostPointerForRegisteredMem: return 91;
    case hipDeviceAttributeClockRate: return 13;
    case hipDeviceAttributeComputeMode: return 20;
    case hipDeviceAttributeComputePreemptionSupported: return 90;
    case hipDeviceAttributeConcurrentKernels: return 31;
    case hipDeviceAttributeConcurrentManagedAccess: return 89;
    case hipDeviceAttributeCooperativeLaunch: return 95;
    case hipDeviceAttributeDeviceOverlap: return 15;
    case hipDeviceAttributeGlobalL1CacheSupported: return 79;
    case hipDeviceAttributeIntegrated: return 18;
    case hipDeviceAttributeIsMultiGpuBoard: return 84;
    case hipDeviceAttributeKernelExecTimeout: return 17;
    case hipDeviceAttributeL2CacheSize: return 38;
    case hipDeviceAttributeLocalL1CacheSupported: return 80;
    case hipDeviceAttributeComputeCapabilityMajor: return 75;
    case hipDeviceAttributeManagedMemory: return 83;
    case hipDeviceAttributeMaxBlocksPerMultiProcessor: return 106;
    case hipDeviceAttributeMaxBlockDimX: return 2;
    case hipDeviceAttributeMaxBlockDimY: return 3;
    case hipDeviceAttributeMaxBlockDimZ: return 4;
    case hipDeviceAttributeMaxGridDimX: return 5;
    case hipDeviceAttributeMaxGridDimY: return 6;
    case hipDeviceAttributeMaxGridDimZ: return 7;
    case hipDeviceAttributeMaxThreadsPerBlock: return 1;
    case hipDeviceAttributeMaxThreadsPerMultiProcessor: return 39;
    case hipDeviceAttributeMaxPitch: return 11;
    case hipDeviceAttributeMemoryBusWidth: return 37;
    case hipDeviceAttributeMemoryClockRate: return 36;
    case hipDeviceAttributeComputeCapabilityMinor: return 76;
    case hipDeviceAttributeMultiprocessorCount: return 16;
    case hipDeviceAttributePageableMemoryAccess: return 88;
    case hipDeviceAttributePciBusId: return 33;
    case hipDeviceAttributePciDeviceId: return 34;
    case hipDeviceAttributePciDomainId: return 50;
    case hipDeviceAttributeMaxRegistersPerBlock: return 12;
    case hipDeviceAttributeMaxRegistersPerMultiprocessor: return 82;
    case hipDeviceAttributeReservedSharedMemPerBlock: return 111;
    case hipDeviceAttributeMaxSharedMemoryPerBlock: return 8;
    case hipDeviceAttributeSharedMemPerBlockOptin: return 97;
    case hipDeviceAttributeSharedMemPerMultiprocessor: return 81;
    case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor: return 81;
    case hipDeviceAttributeStreamPrioritiesSupported: return 78;
    case hipDeviceAttributeTccDriver: return 35;
    case hipDeviceAttributeTotalConstantMemory: return 9;
    case hipDeviceAttributeUnifiedAddressing: return 41;
    case hipDeviceAttributeWarpSize: return 10;
    case hipDeviceAttributeMemoryPoolsSupported: return 115;
    case hipDeviceAttributeVirtualMemoryManagementSupported: return 102;
    case hipDeviceAttributeHostRegisterSupported: return 99;
    case hipDeviceAttributePhysicalMultiProcessorCount: return 16;
    default: return 0;
  }
}

static hipError_t enter_and_check(int ordinal) {
  const hipError_t error = enter_device();
  if (error) return answer(error);
  hipError_t ignored;
  const int count = device_count(&ignored);
  return ordinal < 0 || ordinal >= count ? answer(hipErrorInvalidDevice) : hipSuccess;
}

#define DEVICE(ordinal)                                \
  do {                                                 \
    const hipError_t error = enter_and_check(ordinal); \
    if (error) return error;                           \
  } while (0)

HIP_API hipError_t hipDriverGetVersion(int* version) {
  REQUIRE(version);
  FORWARD(DriverGetVersion(version));
}

HIP_API hipError_t hipRuntimeGetVersion(int* version) {
  REQUIRE(version);
  *version = 71500000; /* of the interface in hip_abi.h */
  return hipSuccess;
}

HIP_API hipError_t hipDeviceGet(int* device, int ordinal) {
  REQUIRE(device);
  DEVICE(ordinal);
  *device = ordinal;
  return hipSuccess;
}

HIP_API hipError_t hipDeviceGetName(char* name, int size, int ordinal) {
  DEVICE(ordinal);
  return answer(hip_error(cuda.DeviceGetName(name, size, cuda_device(ordinal))));
}

HIP_API hipError_t hipDeviceTotalMem(size_t* bytes, int ordinal) {
  DEVICE(ordinal);
  return answer(hip_error(cuda.DeviceTotalMem(bytes, cuda_device(ordinal))));
}

HIP_API hipError_t hipDeviceGetPCIBusId(char* id, int size, int ordinal) {
  DEVICE(ordinal);
  return answer(hip_error(cuda.DeviceGetPCIBusId(id, size, cuda_device(ordinal))));
}

HIP_API hipError_t hipDeviceSynchronize(void) { FORWARD(CtxSynchronize()); }

HIP_API hipError_t hipDeviceCanAccessPeer(int* can, int ordinal, int peer) {
  DEVICE(ordinal);
  DEVICE(peer);
  return answer(hip_error(cuda.DeviceCanAccessPeer(can, cuda_device(ordinal), cuda_device(peer))));
}

HIP_API hipError_t hipDeviceGetAttribute(int* value, int attribute, int ordinal) {
  REQUIRE(value);
  DEVICE(ordinal);
  if (attribute == hipDeviceAttributeWallClockRate) {
    *value = 1000000; /* kHz: %globaltimer counts nanoseconds */
    return hipSuccess;
  }
  const int number = cuda_attribute(attribute);
  REQUIRE(number);
  return answer(hip_error(cuda.DeviceGetAttribute(value, number, cuda_device(ordinal))));
}

static int value_of(int attribute, int ordinal) {
  int value = 0;
  cuda.DeviceGetAttribute(&value, cuda_attribute(attribute), cuda_device(ordinal));
  return value;
}

HIP_API hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_t* p, int ordinal) {
  REQUIRE(p);
  DEVICE(ordinal);
  memset(p, 0, sizeof *p);
  cuda.DeviceGetName(p->name, sizeof p->name, cuda_device(ordinal));
  cuda.DeviceTotalMem(&p->totalGlobalMem, cuda_device(ordinal));
#define SET(member, attribute) p->member = value_of(hipDeviceAttribute##attribute, ordinal)
  SET(sharedMemPerBlock, MaxSharedMemoryPerBlock);
  SET(sharedMemPerBlockOptin, SharedMemPerBlockOptin);
  SET(sharedMemPerMultiprocessor, SharedMemPerMultiprocessor);
  SET(maxSharedMemoryPerMultiProcessor, SharedMemPerMultiprocessor);
  SET(regsPerBlock, MaxRegistersPerBlock);
  SET(regsPerMultiprocessor, MaxRegistersPerMultiprocessor);
  SET(warpSize, WarpSize);
  SET(maxThreadsPerBlock, MaxThreadsPerBlock);
  SET(maxThreadsPerMultiProcessor, MaxThreadsPerMultiProcessor);
  SET(maxBlocksPerMultiProcessor, MaxBlocksPerMultiProcessor);
  SET(maxThreadsDim[0], MaxBlockDimX);
  SET(maxThreadsDim[1], MaxBlockDimY);
  SET(maxThreadsDim[2], MaxBlockDimZ);
  SET(maxGridSize[0], MaxGridDimX);
  SET(maxGridSize[1], MaxGridDimY);
  SET(maxGridSize[2], MaxGridDimZ);
  SET(clockRate, ClockRate);
  SET(memoryClockRate, MemoryClockRate);
  SET(memoryBusWidth, MemoryBusWidth);
  SET(l2CacheSize, L2CacheSize);
  SET(totalConstMem, TotalConstantMemory);
  SET(major, ComputeCapabilityMajor);
  SET(minor, ComputeCapabilityMinor);
  SET(multiProcessorCount, MultiprocessorCount);
  SET(integrated, Integrated);
  SET(canMapHostMemory, CanMapHostMemory);
  SET(concurrentKernels, ConcurrentKernels);
  SET(pciBusID, PciBusId);
  SET(pciDeviceID, PciDeviceId);
  SET(pciDomainID, PciDomainId);
  SET(asyncEngineCount, AsyncEngineCount);
  SET(unifiedAddressing, UnifiedAddressing);
  SET(managedMemory, ManagedMemory);
  SET(cooperativeLaunch, CooperativeLaunch);
  SET(memoryPoolsSupported, MemoryPoolsSupported);
  SET(hostRegisterSupported, HostRegisterSupported);
#undef SET
  /* By this name the caller finds its kernels. */
  snprintf(p->gcnArchName, sizeof p->gcnArchName, "sm_%d%d", p->major, p->minor);
  return hipSuccess;
}
