/* Versions of HIP and the driver; what a device is. */
#include <stdio.h>
#include <string.h>

#include "nvidia.h"

HIP_API hipError_t hipDriverGetVersion(int* version) {
  REQUIRE(version);
  FORWARD(DriverGetVersion(version));
}

HIP_API hipError_t hipRuntimeGetVersion(int* version) {
  REQUIRE(version);
  *version = 71500000; /* of the interface in hip_abi.h */
  return hipSuccess;
}

HIP_API hipError_t hipDeviceSynchronize(void) { FORWARD(CtxSynchronize()); }

static int value_of(int attribute, CUdevice device) {
  int value = 0;
  cuda.DeviceGetAttribute(&value, attribute, device);
  return value;
}

/* Sets the members that the backend reads, and leaves the others 0. */
HIP_API hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_t* p, int ordinal) {
  REQUIRE(p);
  const hipError_t error = enter_device();
  if (error) return error;
  hipError_t ignored;
  if (ordinal < 0 || ordinal >= device_count(&ignored)) return hipErrorInvalidDevice;
  const CUdevice device = cuda_device(ordinal);
  memset(p, 0, sizeof *p);
  cuda.DeviceGetName(p->name, sizeof p->name, device);
  cuda.DeviceTotalMem(&p->totalGlobalMem, device);
  p->warpSize = value_of(CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
  p->multiProcessorCount = value_of(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  p->integrated = value_of(CU_DEVICE_ATTRIBUTE_INTEGRATED, device);
  p->pciBusID = value_of(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device);
  p->pciDeviceID = value_of(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device);
  p->pciDomainID = value_of(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device);
  p->major = value_of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  p->minor = value_of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  /* By this name the caller finds its kernels. */
  snprintf(p->gcnArchName, sizeof p->gcnArchName, "sm_%d%d", p->major, p->minor);
  return hipSuccess;
}
