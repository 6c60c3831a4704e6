#pragma once

#include "rf/platform.h"

namespace rf {

// The same number, which all lanes have: what follows from it is computed where it is needed, and
// waits in no registers.
__device__ __forceinline__ int hidden(int value) {
#if RF_AMD
  asm volatile("" : "+s"(value));
#elif RF_NVIDIA
  asm volatile("" : "+r"(value));
#endif
  return value;
}

}  // namespace rf
