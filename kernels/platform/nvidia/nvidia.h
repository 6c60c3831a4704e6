/* Shared by the files of this library: HIP's view of devices, on top of CUDA's contexts. */
#pragma once

#include "cuda_driver.h"
#include "hip_abi.h"

/* Opens the driver if need be and makes the calling thread's device current: HIP has no explicit
   contexts, so each device's primary one is used. */
hipError_t enter_device(void);

/* Number of devices, after opening the driver; `error` says why there are none. */
int device_count(hipError_t* error);

/* CUDA's handle of a device; `ordinal` is below device_count(). */
CUdevice cuda_device(int ordinal);

/* The corresponding HIP error. Most numbers are equal by design. */
hipError_t hip_error(CUresult result);

/* The body of an entry point that forwards to one driver function. */
#define FORWARD(call)                          \
  do {                                         \
    const hipError_t entered = enter_device(); \
    if (entered) return entered;               \
    return hip_error(cuda.call);               \
  } while (0)

#define REQUIRE(condition) \
  if (!(condition)) return hipErrorInvalidValue
