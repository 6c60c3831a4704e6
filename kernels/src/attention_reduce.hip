// Merges what attention_decode.hip found in the splits of a context.
//
// Short and in the way of everything after it, so made of few loads that wait for each other: every
// wave finds the maximum and the sum of all splits for itself, and the threads of a block share the
// outputs, four elements each, by splits.
#include "rf/act_output.h"
#include "rf/attention.h"
#include "rf/wave.h"

namespace rf {

inline constexpr int kReduceThreads = 256;
inline constexpr int kReduceUnroll = 4;  // loads of a thread on their way together

}  // namespace rf

// Sequences with a single split are finished already. Grid: (heads, sequences). `splits` is the
// grid's y of the first kernel. value_dim: a multiple of 4, at most 1024.
extern "C" __global__ __launch_bounds__(rf::kReduceThreads) void rf_attention_decode_reduce(
    const float* __restrict__ partial, const float* __restrict__ partial_ml,
    const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,
    const int32_t* __restrict__ context_len, const float* __restrict__ sinks,
    float* __restrict__ out_f32, rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,
    rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset, int32_t splits,
    int32_t value_dim, int32_t window, int32_t split_tokens) {
  using Four = rf::Vec<float, 4>;
  __shared__ Four sums[rf::kReduceThreads];
  const int thread = threadIdx.x;
  const int sequence = sequences[blockIdx.y];
  const int context = context_len[sequence];
  const int row = query_start[sequence];
  const rf::SplitRange range = rf::split_range(context, window, split_tokens, 0);
  if (range.begin >= context || range.only) return;
  const int used = (context - range.begin + split_tokens - 1) / split_tokens;

  struct MaxSum {
    float highest, total;
  };
  const int64_t first = (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * splits;
  const MaxSum* ml = reinterpret_cast<const MaxSum*>(partial_ml) + first;
  float highest = rf::kLowestScore;
  for (int i = rf::lane_id(); i < used; i += rf::kWave) highest = rf::max(highest, ml[i].highest);
  highest = rf::wave_max(highest);
  float total = 0.0f;
  for (int i = rf::lane_id(); i < used; i += rf::kWave) {
    total += rf::exp2(ml[i].highest - highest) * ml[i].total;
  }
  total = rf::wave_sum(total) + rf::sink_weight(sinks, blockIdx.x, highest);

  const int columns = value_dim / 4;
  const int parts = rf::kReduceThreads / columns;
  const int part = thread / columns;
  const int column = thread % columns;
  const Four* from = reinterpret_cast<const Four*>(partial) + first * columns + column;
  Four sum{};
  if (part < parts) {
#pragma unroll rf::kReduceUnroll
    for (int i = part; i < used; i += parts) {
      sum += rf::exp2(ml[i].highest - highest) * from[static_cast<int64_t>(i) * columns];
    }
  }
  sums[thread] = sum;
  __syncthreads();
  if (rf::uniform(rf::wave_id()) * rf::kWave >= columns) return;
  for (int other = 1; other < parts; ++other) sum += sums[other * columns + column];
  const int64_t element =
      (static_cast<int64_t>(row) * gridDim.x + blockIdx.x) * value_dim + 4 * column;
  rf::ActOutput{out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}.store(
      element, sum * (1.0f / total), part == 0);
}
