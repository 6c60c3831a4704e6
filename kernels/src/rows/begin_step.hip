// What comes before all other kernels of a step: its inputs are brought from the host, and token
// ids filled in that only the device knows, those the previous step has just sampled.
#include "rf/weights/weights.h"

namespace {

inline constexpr int kThreads = 256;

}  // namespace

// inputs[i] is host[i], for `words` of 16 bytes. tokens[i] is token_ids[i], or where source[i] >= 0
// what previous_tokens has there, for `count` of them. A row that could not be sampled (-1) stands
// for token 0: its sequence is about to be ended. host, token_ids and source may be pinned memory
// of the host, which has them before the launch. Grid: (ceil(max(words, count) / 256)), block 256.
extern "C" __global__ __launch_bounds__(kThreads) void rf_begin_step(
    const rf::U4* host, rf::U4* __restrict__ inputs, int32_t words, const int32_t* token_ids,
    const int32_t* source, const int32_t* __restrict__ previous_tokens,
    int32_t* __restrict__ tokens, int32_t count) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < words) inputs[i] = host[i];
  if (i >= count) return;
  const int row = source[i];
  tokens[i] = row < 0 ? token_ids[i] : rf::max(previous_tokens[row], 0);
}
