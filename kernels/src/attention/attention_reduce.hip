// Merges what attention_prefill.hip found in the splits of a context, and attention_decode.hip
// where its own last blocks do not.
//
// Short and in the way of everything after it, so made of few loads that wait for each other: every
// wave finds the maximum and the sum of all splits for itself, and kMergeSums threads share four
// elements of the output by splits.
#include "rf/attention/prefill.h"
#include "rf/attention/split_merge.h"
#include "rf/attention/teams.h"

namespace rf {

inline constexpr int kReduceThreads = 512;
inline constexpr int kReduceUnroll = 4;  // loads of a thread on their way together

// Puts the first `used` results together that follow `first`, as that of a head of a row. Blocks
// have value_dim threads or more; the grid's x are the heads.
__device__ __forceinline__ void reduce_splits(const float* partial, const float* partial_ml,
                                              const float* sinks, const ActOutput& out,
                                              int64_t first, int used, int row, int value_dim) {
  using Four = Vec<float, 4>;
  __shared__ Four shared[kMergeSums][kReduceThreads / kMergeSums];
  const auto* maxima = reinterpret_cast<const MaxSum*>(partial_ml) + first;
  MaxSum softmax = merge_softmax(maxima, used);
  softmax.total += sink_weight(sinks, blockIdx.x, softmax.highest);

  const int columns = value_dim / 4;
  const int part = static_cast<int>(threadIdx.x) / columns;
  const int column = static_cast<int>(threadIdx.x) % columns;
  const Four* from = reinterpret_cast<const Four*>(partial) + first * columns + column;
  if (part < kMergeSums) {
    Four sum{};
#pragma unroll kReduceUnroll
    for (int i = part; i < used; i += kMergeSums) {
      sum += exp2(maxima[i].highest - softmax.highest) * from[static_cast<int64_t>(i) * columns];
    }
    shared[part][column] = sum;
  }
  __syncthreads();
  if (uniform(wave_id()) * kWave >= columns) return;
  const bool valid = part == 0;
  Four sums[kMergeSums];
#pragma unroll
  for (int i = 0; i < kMergeSums; ++i) sums[i] = shared[i][column];
  const int64_t element =
      (static_cast<int64_t>(row) * gridDim.x + blockIdx.x) * value_dim + 4 * column;
  out.store(element, add_merge_sums(sums) * (1.0f / softmax.total), valid);
}

}  // namespace rf

// Without teams, sequences with a single split are finished already. Grid: (heads, sequences),
// blocks of value_dim threads or more. `splits` is the grid's y of the first kernel. value_dim: a
// multiple of 4, at most 512.
extern "C" __global__ __launch_bounds__(rf::kReduceThreads) void rf_attention_decode_reduce(
    const float* __restrict__ partial, const float* __restrict__ partial_ml,
    const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,
    const int32_t* __restrict__ context_len, const int32_t* __restrict__ teams,
    const float* __restrict__ sinks, float* __restrict__ out_f32, rf::half* __restrict__ out_f16,
    int8_t* __restrict__ out_q, rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset,
    int32_t splits, int32_t value_dim, int32_t window, int32_t split_tokens) {
  const int sequence = sequences[blockIdx.y];
  const int context = context_len[sequence];
  const int shared = teams ? rf::Teams{teams}.shared(static_cast<int>(blockIdx.y)) : 0;
  if (!teams) split_tokens = rf::even_split(context, window, split_tokens, splits);
  const rf::SplitRange range = rf::split_range(context, window, split_tokens, 0, shared);
  if (range.begin >= context || (range.only && !teams)) return;
  const int used = rf::splits_of(context, window, split_tokens, shared);
  const int64_t first = (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * splits;
  rf::reduce_splits(partial, partial_ml, sinks,
                    {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}, first, used,
                    query_start[sequence], value_dim);
}

// Grid: (heads, tokens that have rows in the first split_tiles tiles of the longest sequence,
// sequences). Blocks and value_dim as above.
extern "C" __global__ __launch_bounds__(rf::kReduceThreads) void rf_attention_prefill_reduce(
    const float* __restrict__ partial, const float* __restrict__ partial_ml,
    const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,
    const float* __restrict__ sinks, float* __restrict__ out_f32, rf::half* __restrict__ out_f16,
    int32_t split_tiles, int32_t splits, int32_t kv_heads, int32_t value_dim) {
  const int sequence = sequences[blockIdx.z], token = static_cast<int>(blockIdx.y);
  const int row = query_start[sequence] + token;
  if (row >= query_start[sequence + 1]) return;
  const int heads = static_cast<int>(gridDim.x), group = heads / kv_heads;
  const int own_row = token * group + static_cast<int>(blockIdx.x) % group;  // as attention has it
  if (own_row >= split_tiles * rf::kAttentionRows) return;
  const rf::PrefillSplits found{nullptr, nullptr, split_tiles, splits, 0};
  const int64_t place = static_cast<int64_t>(blockIdx.z) * found.tokens_of(group) + token;
  const int64_t first = (place * heads + blockIdx.x) * splits;
  rf::reduce_splits(partial, partial_ml, sinks, {out_f32, out_f16, nullptr, nullptr, 0}, first,
                    splits, row, value_dim);
}
