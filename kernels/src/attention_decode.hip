// Attention of one new token a sequence over the paged cache (flash decoding, Dao et al. 2023).
//
// A block serves one kv head: its kGroup query heads share every load of K and V. The context is
// split over blocks of `split_tokens`. The last of them to finish merges what they found, or
// attention_reduce.hip does, with the same result.
#include "rf/act_output.h"
#include "rf/decode/lanes.h"
#include "rf/decode/matrix.h"
#include "rf/last_block.h"
#include "rf/rope.h"
#include "rf/split_merge.h"

namespace rf {

inline constexpr int kDecodeThreads = kDecodeWaves * kWave;

// On which instructions a wave does its part. Matrix instructions want rows that are whole chunks
// of four lanes.
template <class Stored, int kKeyDim, int kValueDim, int kGroup, bool kValuesInKeys>
struct DecodeWave {
  using Type = LaneWave<Stored, kKeyDim, kValueDim, kGroup, kValuesInKeys>;
  // Of a compute unit, for which the merge of splits would else take registers that the splits
  // leave.
  static constexpr int kBlocks = kGroup <= 4 && kKeyDim <= 128 ? 3 : 2;
};
#if RF_DECODE_UNIT
template <class Stored, int kKeyDim, int kValueDim, int kGroup>
  requires((sizeof(Stored) == 1 || decode::Unit::kTakesHalves) && kKeyDim % 64 == 0 &&
           kValueDim % 64 == 0 && !CacheType<Stored>::kPacksValues)
struct DecodeWave<Stored, kKeyDim, kValueDim, kGroup, false> {
  using Type = MatrixWave<Stored, kKeyDim, kValueDim, kGroup>;
  static constexpr int kBlocks = kGroup > 4 || kKeyDim > 128 ? 2 : sizeof(Stored) == 1 ? 4 : 3;
};
#endif

// What the products of a step's tokens are before rope_store.hip has been there.
struct NewTokens {
  // Rows q_stride, k_stride, v_stride apart; q null: it has been there. k null: another layer's
  // launch has stored keys and values.
  const float *q, *k, *v;
  const float *q_norm, *k_norm;  // [key_dim]; null = none
  const float *cosine, *sine;    // [max_context, rotary_dim / 2]
  int64_t q_stride, k_stride, v_stride;
  int rotary_dim;
  bool neox;
  bool norms_values;  // without a weight
  float eps;
};

struct DecodeInput {
  const half* q;  // [T, heads * key_dim], where `fresh` has none
  NewTokens fresh;
  const int32_t* sequences;    // indices of the sequences with one new token
  const int32_t* query_start;  // [B + 1]
  const int32_t* context_len;  // [B]; 0 = padding
  const float* sinks;          // [heads]; null = none
  int heads;
  int window;
  int split_tokens;  // a multiple of kBlockTokens
  ScoreRule rule;
};

struct DecodeOutput {
  ActOutput attended;  // [T, heads * value_dim]
  float* partial;      // [sequences, heads, splits, value_dim], relative to their maximum
  float* partial_ml;   // [sequences, heads, splits, 2]: maximum and sum
  uint32_t* arrived;   // [sequences, the grid's x], see last_block.h; null: splits are not merged
};

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
  const int64_t table_row = static_cast<int64_t>(position) * (fresh.rotary_dim / 2);
  const auto rotated = [&](const float* row, const float* norm) {
    HeadPairs head = load_head<kPairs>(key, row);
    if (norm) normalise(key, head, norm, fresh.eps);
    rotate(key, head, fresh.cosine + table_row, fresh.sine + table_row);
    return head;
  };
  const int all = heads + (owns_key ? 2 : 0);
  for (int index = uniform(wave_id()); index < all; index += kDecodeWaves) {
    if (index < heads) {
      const float* row = fresh.q + token * fresh.q_stride + (first_head + index) * kKeyDim;
      store_head(key, rotated(row, fresh.q_norm), queries[index]);
    } else if (index == heads) {
      const float* row = fresh.k + token * fresh.k_stride + kv_head * kKeyDim;
      store_cached(key, rotated(row, fresh.k_norm), cache.k + cache_row * kKeyDim,
                   cache.k_scale + cache_row);
    } else {
      const HeadShape value{kValueDim, 0, false};
      const float* row = fresh.v + token * fresh.v_stride + kv_head * kValueDim;
      HeadPairs head = load_head<kPairs>(value, row);
      if (fresh.norms_values) normalise<kPairs>(value, head, nullptr, fresh.eps);
      if constexpr (CacheType<Stored>::kPacksValues) {
        store_packed(value, head, cache.v + cache_row * kValueDim / kPacked<uint32_t>,
                     cache.v_scale + cache_row, scratch);
      } else {
        store_cached(value, head, cache.v + cache_row * kValueDim, cache.v_scale + cache_row);
      }
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
             {cache.blocks_of(sequence), kv_head, cache.kv_heads, range.begin, range.end,
              first_visible(context - 1, in.window), context},
             wave, in.rule);

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
#define RF_BLOCKS(Stored, group) \
  (rf::DecodeWave<Stored, RF_KEY_DIM, RF_VALUE_DIM, group, RF_VALUES_IN_KEYS>::kBlocks)
#define RF_NAME(kind, head, group) rf_attention_decode_##kind##_##head##_g##group

#define RF_ATTENTION_DECODE_F16(head, group)                                                      \
  extern "C" __global__ __launch_bounds__(rf::kDecodeThreads,                                     \
                                          RF_BLOCKS(rf::half, group)) void RF_NAME(f16, head,     \
                                                                                   group)(        \
      const rf::half* __restrict__ q, const float* __restrict__ new_q,                            \
      const float* __restrict__ new_k, const float* __restrict__ new_v,                           \
      const float* __restrict__ q_norm, const float* __restrict__ k_norm,                         \
      const float* __restrict__ cosine, const float* __restrict__ sine, rf::half* k_cache,        \
      rf::half* v_cache, const int32_t* __restrict__ block_table,                                 \
      const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,             \
      const int32_t* __restrict__ context_len, const float* __restrict__ sinks,                   \
      float* __restrict__ out_f32, rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,    \
      rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset,                            \
      float* __restrict__ partial, float* __restrict__ partial_ml, uint32_t* arrived,             \
      int64_t q_stride, int64_t k_stride, int64_t v_stride, int32_t blocks_per_sequence,          \
      int32_t heads, int32_t kv_heads, int32_t rotary_dim, int32_t neox, int32_t norms_values,    \
      int32_t window, int32_t split_tokens, float eps, float scale, float softcap) {              \
    const rf::NewTokens fresh{new_q,                                                              \
                              new_k,                                                              \
                              new_v,                                                              \
                              q_norm,                                                             \
                              k_norm,                                                             \
                              cosine,                                                             \
                              sine,                                                               \
                              q_stride,                                                           \
                              k_stride,                                                           \
                              v_stride,                                                           \
                              rotary_dim,                                                         \
                              neox != 0,                                                          \
                              norms_values != 0,                                                  \
                              eps};                                                               \
    rf::attention_decode<rf::half, RF_KEY_DIM, RF_VALUE_DIM, group, RF_VALUES_IN_KEYS>(           \
        {q,                                                                                       \
         fresh,                                                                                   \
         sequences,                                                                               \
         query_start,                                                                             \
         context_len,                                                                             \
         sinks,                                                                                   \
         heads,                                                                                   \
         window,                                                                                  \
         split_tokens,                                                                            \
         {scale, softcap}},                                                                       \
        {k_cache, v_cache, nullptr, nullptr, block_table, blocks_per_sequence, kv_heads},         \
        {{out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}, partial, partial_ml, arrived}); \
  }

#define RF_ATTENTION_DECODE_SCALED(kind, Stored, head, group)                                     \
  extern "C" __global__ __launch_bounds__(rf::kDecodeThreads,                                     \
                                          RF_BLOCKS(Stored, group)) void RF_NAME(kind, head,      \
                                                                                 group)(          \
      const rf::half* __restrict__ q, const float* __restrict__ new_q,                            \
      const float* __restrict__ new_k, const float* __restrict__ new_v,                           \
      const float* __restrict__ q_norm, const float* __restrict__ k_norm,                         \
      const float* __restrict__ cosine, const float* __restrict__ sine,                           \
      rf::CacheType<Stored>::Key* k_cache, rf::CacheType<Stored>::Value* v_cache, float* k_scale, \
      float* v_scale, const int32_t* __restrict__ block_table,                                    \
      const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,             \
      const int32_t* __restrict__ context_len, const float* __restrict__ sinks,                   \
      float* __restrict__ out_f32, rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,    \
      rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset,                            \
      float* __restrict__ partial, float* __restrict__ partial_ml, uint32_t* arrived,             \
      int64_t q_stride, int64_t k_stride, int64_t v_stride, int32_t blocks_per_sequence,          \
      int32_t heads, int32_t kv_heads, int32_t rotary_dim, int32_t neox, int32_t norms_values,    \
      int32_t window, int32_t split_tokens, float eps, float scale, float softcap) {              \
    const rf::NewTokens fresh{new_q,                                                              \
                              new_k,                                                              \
                              new_v,                                                              \
                              q_norm,                                                             \
                              k_norm,                                                             \
                              cosine,                                                             \
                              sine,                                                               \
                              q_stride,                                                           \
                              k_stride,                                                           \
                              v_stride,                                                           \
                              rotary_dim,                                                         \
                              neox != 0,                                                          \
                              norms_values != 0,                                                  \
                              eps};                                                               \
    rf::attention_decode<Stored, RF_KEY_DIM, RF_VALUE_DIM, group, RF_VALUES_IN_KEYS>(             \
        {q,                                                                                       \
         fresh,                                                                                   \
         sequences,                                                                               \
         query_start,                                                                             \
         context_len,                                                                             \
         sinks,                                                                                   \
         heads,                                                                                   \
         window,                                                                                  \
         split_tokens,                                                                            \
         {scale, softcap}},                                                                       \
        {k_cache, v_cache, k_scale, v_scale, block_table, blocks_per_sequence, kv_heads},         \
        {{out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}, partial, partial_ml, arrived}); \
  }

#define RF_F16(group) RF_ATTENTION_DECODE_F16(RF_HEAD, group)
#define RF_INT8(group) RF_ATTENTION_DECODE_SCALED(int8, int8_t, RF_HEAD, group)
#define RF_K8V4(group) RF_ATTENTION_DECODE_SCALED(k8v4, rf::K8V4, RF_HEAD, group)
RF_GROUPS(RF_F16)
RF_GROUPS(RF_INT8)
#if RF_PACKS_VALUES
RF_GROUPS(RF_K8V4)
#endif
