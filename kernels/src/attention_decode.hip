// Attention of one new token a sequence over the paged cache (flash decoding, Dao et al. 2023).
//
// A block serves one kv head: its kGroup query heads share every load of K and V. The context is
// split over blocks of `split_tokens`. The last of them to finish merges what they found, or
// attention_reduce.hip does, with the same result.
#include "rf/decode/kernel.h"

namespace rf {

// Rotates `heads` queries of a token from `first_head` on into LDS. The block that reads the
// token's own key does the same to that, and puts key and value into the cache before anybody reads
// them.
template <class Stored, int kKeyDim, int kValueDim, int kGroup>
__device__ __forceinline__ void rope_new_token(const NewTokens& fresh, const Cache<Stored>& cache,
                                               int token, int position, int first_head, int heads,
                                               int kv_head, int64_t cache_row, bool owns_key,
                                               half (&queries)[kGroup][kKeyDim], float* scratch) {
  constexpr int kPairs = kPairsOfLane<(kKeyDim > kValueDim ? kKeyDim : kValueDim)>;
  const HeadShape key{kKeyDim, fresh.rotary_dim, fresh.neox};
  const int all = heads + (owns_key ? 2 : 0);
  for (int index = uniform(wave_id()); index < all; index += kDecodeWaves) {
    if (index < heads) {
      const float* row = fresh.q + token * fresh.q_stride + (first_head + index) * kKeyDim;
      store_head(key, rotated_head<kKeyDim, kPairs>(fresh, position, row, fresh.q_norm),
                 queries[index]);
    } else {
      store_new_token<Stored, kKeyDim, kValueDim>(fresh, cache, token, position, kv_head, cache_row,
                                                  index > heads, scratch);
    }
  }
  __syncthreads();
}

// Grid: (kv_heads * ceil(group / kGroup), splits, sequences), kDecodeWaves waves a block. New
// tokens that are not in the cache want group <= kGroup, as one block alone puts a key there.
template <class Stored, int kKeyDim, int kValueDim, int kGroup, bool kValuesInKeys>
__device__ __forceinline__ void attention_decode(const DecodeInput& in, const Cache<Stored>& cache,
                                                 const DecodeOutput& out) {
  constexpr bool kMayRope = kKeyDim <= kNarrowHeadDim;  // for others there are no registers

  const int sequence = in.sequences[blockIdx.z];
  const int context = in.context_len[sequence];
  const SplitRange range = split_range(context, in.window, in.split_tokens, blockIdx.y);
  // Before the kernel before has ended, what was there when it began may be read.
  const int last = context - 1;
  const int32_t* blocks = cache.blocks_of(sequence);
  int last_block = 0;
  if constexpr (kBeginsEarly) {
    if (kMayRope && in.fresh.q && range.begin < context) last_block = blocks[last / kBlockTokens];
    wait_for_previous(in.q, in.fresh.q, in.fresh.k, in.fresh.v);
    let_next_begin_if_few();
  }
  if (range.begin >= context) return;

  const int group = in.heads / cache.kv_heads;
  const int tiles = (group + kGroup - 1) / kGroup;
  const int kv_head = blockIdx.x / tiles;
  const int first_head = static_cast<int>(blockIdx.x) % tiles * kGroup;  // within the group
  const int heads = min(kGroup, group - first_head);
  const int64_t query_row =
      static_cast<int64_t>(in.query_start[sequence]) * in.heads + kv_head * group + first_head;

  const int wave = uniform(wave_id());
  alignas(16) __shared__ float wave_output[kDecodeWaves][kGroup][kValueDim];
  typename DecodeWave<Stored, kKeyDim, kValueDim, kGroup, kValuesInKeys>::Type own;
  if (kMayRope && in.fresh.q) {
    alignas(16) __shared__ half queries[kGroup][kKeyDim];
    if constexpr (!kBeginsEarly) last_block = blocks[last / kBlockTokens];
    const int64_t row = cache_row(last_block, last % kBlockTokens, kv_head, cache.kv_heads);
    rope_new_token<Stored, kKeyDim, kValueDim, kGroup>(
        in.fresh, cache, in.query_start[sequence], last, kv_head * group + first_head, heads,
        kv_head, row, in.fresh.k && range.end == context, queries, wave_output[wave][0]);
    own.load_queries(queries[0], heads);
  } else {
    own.load_queries(in.q + query_row * kKeyDim, heads);
  }

  own.attend(cache,
             TokenWalk{cache.blocks_of(sequence), kv_head, cache.kv_heads, range.begin, range.end,
                       first_visible(context - 1, in.window), context},
             wave, kDecodeWaves, in.rule);
  own.finish();

  __shared__ float wave_highest[kDecodeWaves][kGroup];
  __shared__ float wave_total[kDecodeWaves][kGroup];
  own.store(wave_output[wave], wave_highest[wave], wave_total[wave]);
  __syncthreads();

  using Splits = SplitResults<kValueDim>;
  const int64_t first_split =
      (static_cast<int64_t>(blockIdx.z) * in.heads + kv_head * group + first_head) * gridDim.y;
  const Splits splits{out.partial + first_split * kValueDim,
                      reinterpret_cast<MaxSum*>(out.partial_ml) + first_split,
                      static_cast<int>(gridDim.y)};
  const float* sinks = in.sinks ? in.sinks + kv_head * group + first_head : nullptr;

  // Four elements a lane; whole waves stay together, as ActOutput wants.
  constexpr int kElements = kGroup * kValueDim;
  for (int from = 0; from < kElements; from += 4 * kDecodeThreads) {
    const int i = from + 4 * static_cast<int>(threadIdx.x);
    const int head = min(i / kValueDim, kGroup - 1);
    const bool valid = i < kElements && head < heads;
    float highest = wave_highest[0][head];
    for (int w = 1; w < kDecodeWaves; ++w) highest = max(highest, wave_highest[w][head]);
    float total = 0.0f;
    Vec<float, 4> sum{};
    for (int w = 0; w < kDecodeWaves; ++w) {
      const float factor = exp2(wave_highest[w][head] - highest);
      total += factor * wave_total[w][head];
      sum += factor * load16(&wave_output[w][head][i % kValueDim]);
    }
    if constexpr (CacheType<Stored>::kPacksValues) {
      float four[4]{sum[0], sum[1], sum[2], sum[3]};
      turn(four);
      sum = {four[0], four[1], four[2], four[3]};
    }
    if (range.only) {
      total += sink_weight(sinks, min(head, heads - 1), highest);
      out.attended.store(query_row * kValueDim + i, sum * (1.0f / total), valid);
    } else if (valid) {
      splits.store(head, blockIdx.y, i % kValueDim, sum, {highest, total});
    }
  }
  if (range.only || !out.arrived) return;

  const int used = splits_of(context, in.window, in.split_tokens);
  if (!is_last_block(out.arrived + blockIdx.z * gridDim.x + blockIdx.x, used)) return;
  __shared__ MaxSum merged[kGroup];
  merge_splits<kDecodeThreads, kGroup>(splits, used, heads, sinks, query_row * kValueDim,
                                       out.attended, merged);
}

}  // namespace rf

// RF_HEAD is the head size of this translation unit, RF_KEY_DIM and RF_VALUE_DIM its elements,
// RF_VALUES_IN_KEYS whether v_cache is k_cache, with values as the end of its rows, and
// RF_GROUPS(X) is X(group) for each number of heads that a block may have.
#define RF_MORE_PARAMETERS
#define RF_MORE_ARGUMENTS
#define RF_FUNCTION(Stored, group) \
  rf::attention_decode<Stored, RF_KEY_DIM, RF_VALUE_DIM, group, RF_VALUES_IN_KEYS>
#define RF_DECODE(kind, Stored, group, has_scales)                                             \
  RF_ATTENTION_DECODE(RF_NAME(decode, kind, RF_HEAD, group), RF_BLOCKS(Stored, group), Stored, \
                      group, has_scales)

#define RF_F16(group) RF_DECODE(f16, rf::half, group, no)
#define RF_INT8(group) RF_DECODE(int8, int8_t, group, yes)
#define RF_K8V4(group) RF_DECODE(k8v4, rf::K8V4, group, yes)
RF_GROUPS(RF_F16)
RF_GROUPS(RF_INT8)
#if RF_PACKS_VALUES
RF_GROUPS(RF_K8V4)
#endif
