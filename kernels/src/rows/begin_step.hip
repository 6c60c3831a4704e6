// What comes before all other kernels of a step: its inputs are brought from the host, and token
// ids filled in that only the device knows, those the previous step has just sampled.
#include "rf/weights/weights.h"

namespace rf {

inline constexpr int kBeginThreads = 256;

// What the host has written there, however often this address was read before.
template <class T>
__device__ __forceinline__ T from_host(const T* address) {
  return *static_cast<const volatile T*>(address);
}

}  // namespace rf

// inputs[i] is host[i], for `words` of 16 bytes. tokens[i] is token_ids[i], or where source[i] >= 0
// what previous_tokens has there, for `count` of them. A row that could not be sampled (-1) stands
// for token 0: its sequence is about to be ended. host, token_ids and source may be pinned memory
// of the host, which is read once. Grid: (ceil(max(words, count) / 256)), block 256.
extern "C" __global__ __launch_bounds__(rf::kBeginThreads) void rf_begin_step(
    const rf::U4* host, rf::U4* __restrict__ inputs, int32_t words, const int32_t* token_ids,
    const int32_t* source, const int32_t* __restrict__ previous_tokens,
    int32_t* __restrict__ tokens, int32_t count) {
  const int i = static_cast<int>(blockIdx.x * rf::kBeginThreads + threadIdx.x);
  if (i < words) inputs[i] = rf::from_host(host + i);
  if (i >= count) return;
  const int row = rf::from_host(source + i);
  tokens[i] = row < 0 ? rf::from_host(token_ids + i) : rf::max(previous_tokens[row], 0);
}
