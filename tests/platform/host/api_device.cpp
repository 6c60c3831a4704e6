// Devices, their properties, and errors.
#include <cstdio>
#include <cstring>

#include "api.h"
#include "block.h"
#include "memory.h"
#include "module.h"
#include "options.h"

using namespace host;

namespace {

constexpr int kVersion = 71500000;
constexpr char kName[] = "ROCmForge host platform";

thread_local int current = 0;

hipError_t check_device(int device) {
  const bool exists = device >= 0 && device < options().devices;
  return exists ? hipSuccess : hipErrorInvalidDevice;
}

}  // namespace

HIP_API hipError_t hipDriverGetVersion(int* version) {
  *version = kVersion;
  return hipSuccess;
}

HIP_API hipError_t hipRuntimeGetVersion(int* version) { return hipDriverGetVersion(version); }

HIP_API hipError_t hipGetDeviceCount(int* count) {
  *count = options().devices;
  return hipSuccess;
}

HIP_API hipError_t hipSetDevice(int device) {
  if (hipError_t error = check_device(device)) return error;
  current = device;
  return hipSuccess;
}

HIP_API hipError_t hipGetDevice(int* device) {
  *device = current;
  return hipSuccess;
}

HIP_API hipError_t hipDeviceSynchronize() {
  ENTER();
  NOT_WHILE_CAPTURING("hipDeviceSynchronize");
  return streams().synchronize_all();
}

// Clears what was found; buffers stay.
HIP_API hipError_t hipDeviceReset() {
  const std::lock_guard<std::mutex> lock(library_mutex());
  streams().synchronize_all();
  clear_findings();
  memory().release_all();
  return hipSuccess;
}

HIP_API hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_t* properties, int device) {
  if (hipError_t error = check_device(device)) return error;
  hipDeviceProp_t& p = *properties;
  std::memset(&p, 0, sizeof p);
  std::snprintf(p.name, sizeof p.name, "%s", kName);
  std::snprintf(p.gcnArchName, sizeof p.gcnArchName, "host-w%d", options().wave);
  p.pciBusID = device;
  p.totalGlobalMem = options().memory;
  p.sharedMemPerBlock = p.sharedMemPerMultiprocessor = Module::kLdsBytes;
  p.maxSharedMemoryPerMultiProcessor = Module::kLdsBytes;
  p.regsPerBlock = 65536;
  p.warpSize = options().wave;
  p.maxThreadsPerBlock = BlockRunner::kMaxThreads;
  for (int& size : p.maxThreadsDim) size = BlockRunner::kMaxThreads;
  p.maxGridSize[0] = 0x7fffffff;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.clockRate = 1000000;
  p.memoryClockRate = 1000000;
  p.memoryBusWidth = 64;
  p.multiProcessorCount = 8;
  p.maxThreadsPerMultiProcessor = 2048;
  p.l2CacheSize = 1 << 20;
  p.concurrentKernels = 1;
  p.memoryPoolsSupported = 1;
  return hipSuccess;
}
