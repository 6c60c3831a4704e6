// Fills in the token ids that only the device knows: those the previous step has just sampled.
#include "rf/platform.h"

namespace {

inline constexpr int kThreads = 256;

}  // namespace

// tokens[i] is token_ids[i], or where source[i] >= 0 what previous_tokens has there. A row that
// could not be sampled (-1) stands for token 0: its sequence is about to be ended. Grid:
// (ceil(count / 256)), block 256.
extern "C" __global__ __launch_bounds__(kThreads) void rf_resolve_tokens(
    const int32_t* __restrict__ token_ids, const int32_t* __restrict__ source,
    const int32_t* __restrict__ previous_tokens, int32_t* __restrict__ tokens, int32_t count) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= count) return;
  tokens[i] = source[i] < 0 ? token_ids[i] : rf::max(previous_tokens[source[i]], 0);
}
