// Teams of decode attention: sequences of a step whose contexts begin with the same blocks of the
// cache, as a prompt that many share leaves them. One thread block reads these for all of a team.
#pragma once

#include "rf/platform.h"

namespace rf {

inline constexpr int kTeamRows = 8;  // of queries that a wave has: heads of its sequences

// What a step says of its decodes, [decodes, 4]. Of each: tokens at its front that its team reads,
// a multiple of kBlockTokens and less than its context, 0 without a team; the members whose results
// its thread blocks compute, 0 of all but a team's first; and, of those, where they begin in the
// fourth column, which has the decodes team by team.
struct Teams {
  const int32_t* rows;

  __device__ __forceinline__ int shared(int decode) const { return rows[4 * decode]; }
  __device__ __forceinline__ int members(int decode) const { return rows[4 * decode + 1]; }
  __device__ __forceinline__ int member(int decode, int i) const {
    return rows[4 * (rows[4 * decode + 2] + i) + 3];
  }
};

}  // namespace rf
