// Lanes of a wave as the bits of a mask (ballot()).
#pragma once

#include "rf/platform.h"

namespace rf {

__device__ __forceinline__ int count_lanes(LaneMask lanes) { return __builtin_popcountll(lanes); }

// Lanes of the mask below this one.
__device__ __forceinline__ int count_lower(LaneMask lanes) {
  return count_lanes(lanes & ((LaneMask{1} << lane_id()) - 1));
}

}  // namespace rf
