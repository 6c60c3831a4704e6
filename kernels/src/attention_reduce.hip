// Merges what attention_decode.hip found in the splits of a context.
#include "rf/attention.h"
#include "rf/wave.h"

namespace rf {

inline constexpr int kReduceThreads = 256;
inline constexpr int kMaxSplits = 1024;

}  // namespace rf

// Sequences with a single split are finished already. Grid: (heads, sequences). `splits` is the
// grid's y of the first kernel, at most kMaxSplits.
extern "C" __global__ __launch_bounds__(rf::kReduceThreads) void rf_attention_decode_reduce(
    const float* __restrict__ partial, const float* __restrict__ partial_ml,
    const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,
    const int32_t* __restrict__ context_len, float* __restrict__ out_f32,
    rf::half* __restrict__ out_f16, int32_t splits, int32_t head_dim, int32_t window,
    int32_t split_tokens) {
  __shared__ float factors[rf::kMaxSplits];
  __shared__ float scratch[rf::kMaxWaves];
  __shared__ float sums[rf::kReduceThreads];
  const int thread = threadIdx.x;
  const int sequence = sequences[blockIdx.y];
  const int context = context_len[sequence];
  const rf::SplitRange range = rf::split_range(context, window, split_tokens, 0);
  if (range.begin >= context || range.only) return;
  const int used = (context - range.begin + split_tokens - 1) / split_tokens;

  const int64_t first = (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * splits;
  const float* ml = partial_ml + 2 * first;
  float highest = rf::kLowestScore;
  for (int i = thread; i < used; i += rf::kReduceThreads) highest = rf::max(highest, ml[2 * i]);
  highest = rf::block_reduce(highest, scratch, [](float a, float b) { return rf::max(a, b); });
  float total = 0.0f;
  for (int i = thread; i < used; i += rf::kReduceThreads) {
    factors[i] = rf::exp2(ml[2 * i] - highest);
    total += factors[i] * ml[2 * i + 1];
  }
  total = rf::block_sum(total, scratch);  // its barriers publish the factors too

  // Several threads share an element: each takes every `parts`-th split.
  const int parts = rf::kReduceThreads / head_dim;
  const int part = thread / head_dim;
  const int column = thread % head_dim;
  float sum = 0.0f;
  if (part < parts) {
    for (int i = part; i < used; i += parts) {
      sum += factors[i] * partial[(first + i) * head_dim + column];
    }
  }
  sums[thread] = sum;
  __syncthreads();
  if (part != 0) return;
  for (int other = 1; other < parts; ++other) sum += sums[other * head_dim + column];
  const int64_t element =
      (static_cast<int64_t>(query_start[sequence]) * gridDim.x + blockIdx.x) * head_dim + column;
  if (out_f32) out_f32[element] = sum / total;
  if (out_f16) out_f16[element] = rf::to_half(sum / total);
}
