// What brings memory nearer before anybody reads it.
#pragma once

#include "rf/platform.h"

namespace rf {

// Has a line of memory come into the L2 cache, where there is an instruction for it.
inline constexpr int kLineBytes = 128;
__device__ __forceinline__ void fetch_line([[maybe_unused]] const void* line) {
#if RF_NVIDIA
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
#endif
}

}  // namespace rf
