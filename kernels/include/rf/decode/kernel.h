// What the kernels of decode attention are given, and the declaration that they share.
#pragma once

#include "rf/activations/act_output.h"
#include "rf/attention/rope.h"
#include "rf/attention/split_merge.h"
#include "rf/decode/lanes.h"
#include "rf/decode/matrix.h"
#include "rf/last_block.h"
#include "rf/written_alike.h"

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

// What norms of queries and keys a kernel knows.
enum class HeadNorms {
  kBeforeRope,  // of each head
  kOfHeads,     // of each head, before rope or behind it
  kJoint,       // of all heads of a row together, before rope
};

// What the products of a step's tokens are before rope_store.hip has been there.
struct NewTokens {
  // Rows q_stride, k_stride, v_stride apart; q null: it has been there. k null: another layer's
  // launch has stored keys and values.
  const float *q, *k, *v;
  const float *q_norm, *k_norm;  // [key_dim]; null = none; kJoint: [heads * key_dim]
  const float *cosine, *sine;    // [max_context, rotary_dim / 2]
  int64_t q_stride, k_stride, v_stride;
  int rotary_dim;
  bool neox;
  bool rotates_first;  // kOfHeads: norms come behind rope, not before it
  bool norms_values;   // without a weight
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
  int split_tokens;  // at most, a multiple of kBlockTokens
  ScoreRule rule;
};

struct DecodeOutput {
  ActOutput attended;  // [T, heads * value_dim]
  float* partial;      // [sequences, heads, splits, value_dim], relative to their maximum
  float* partial_ml;   // [sequences, heads, splits, 2]: maximum and sum
  uint32_t* arrived;   // [sequences, the grid's x], see last_block.h; null: splits are not merged
};

// A head of a query or key as attention wants it. norm: its weights; row_factor: of kJoint.
template <HeadNorms kNorms, int kKeyDim, int kPairs>
__device__ __forceinline__ HeadPairs<kPairs> rotated_head(const NewTokens& fresh, int position,
                                                          const float* row, const float* norm,
                                                          float row_factor) {
  const HeadShape key{kKeyDim, fresh.rotary_dim, fresh.neox};
  const int64_t table_row = static_cast<int64_t>(position) * (fresh.rotary_dim / 2);
  HeadPairs head = load_head<kPairs>(key, row);
  const float *cosine = fresh.cosine + table_row, *sine = fresh.sine + table_row;
  const bool rotates_first = kNorms == HeadNorms::kOfHeads && fresh.rotates_first;
  if (rotates_first) rotate(key, head, cosine, sine);
  if constexpr (kNorms == HeadNorms::kJoint) {
    scale_head(key, head, row_factor, norm);
  } else if (norm) {
    normalise(key, head, norm, fresh.eps);
  }
  if (!rotates_first) rotate(key, head, cosine, sine);
  return head;
}

// Says that each block of a kv head puts the key and value of its new token into the cache.
template <class Stored, int kKeyDim, int kValueDim>
__device__ __forceinline__ void stored_by_each_block(const Cache<Stored>& cache, int64_t row) {
  if (threadIdx.x != 0) return;
  using Type = CacheType<Stored>;
  constexpr int kWords = kValueDim / kPacked<typename Type::Value>;
  written_alike(cache.k + row * kKeyDim, kKeyDim * sizeof(typename Type::Key));
  written_alike(cache.v + row * kWords, kWords * sizeof(typename Type::Value));
  if constexpr (Type::kHasScales) {
    written_alike(cache.k_scale + row, sizeof(float));
    written_alike(cache.v_scale + row, sizeof(float));
  }
}

// Puts the key of a token into the cache, or its value.
template <HeadNorms kNorms, class Stored, int kKeyDim, int kValueDim>
__device__ __forceinline__ void store_new_token(const NewTokens& fresh, const Cache<Stored>& cache,
                                                int token, int position, int kv_head,
                                                int64_t cache_row, bool is_value, float row_factor,
                                                float* scratch) {
  constexpr int kPairs = kPairsOfLane<(kKeyDim > kValueDim ? kKeyDim : kValueDim)>;
  if (!is_value) {
    const HeadShape key{kKeyDim, fresh.rotary_dim, fresh.neox};
    const int column = kv_head * kKeyDim;
    const float* row = fresh.k + token * fresh.k_stride + column;
    const float* norm = fresh.k_norm + (kNorms == HeadNorms::kJoint ? column : 0);
    store_cached(key, rotated_head<kNorms, kKeyDim, kPairs>(fresh, position, row, norm, row_factor),
                 cache.k + cache_row * kKeyDim, cache.k_scale + cache_row);
    return;
  }
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

}  // namespace rf

// At least so many blocks of a compute unit. One with more waves than usual is alone on it.
#define RF_BLOCKS(Stored, group) \
  (rf::kDecodeWaves > 4          \
       ? 1                       \
       : rf::DecodeWave<Stored, RF_KEY_DIM, RF_VALUE_DIM, group, RF_VALUES_IN_KEYS>::kBlocks)
#define RF_NAME_OF(what, kind, head, group) rf_attention_##what##_##kind##_##head##_g##group
#define RF_NAME(what, kind, head, group) RF_NAME_OF(what, kind, head, group)
// Parameters of some caches, and what stands for them with all.
#define RF_SCALES_no
#define RF_SCALES_yes float *k_scale, float *v_scale,
#define RF_K_SCALE_no nullptr
#define RF_K_SCALE_yes k_scale
#define RF_V_SCALE_no nullptr
#define RF_V_SCALE_yes v_scale

// A kernel that calls RF_FUNCTION(Stored, group) with RF_MORE_ARGUMENTS, which it takes as
// RF_MORE_PARAMETERS.
#define RF_ATTENTION_DECODE(name, blocks, Stored, group, has_scales)                               \
  extern "C" __global__ __launch_bounds__(rf::kDecodeThreads, blocks) void name(                   \
      const rf::half* __restrict__ q, const float* __restrict__ new_q,                             \
      const float* __restrict__ new_k, const float* __restrict__ new_v,                            \
      const float* __restrict__ q_norm, const float* __restrict__ k_norm,                          \
      const float* __restrict__ cosine, const float* __restrict__ sine,                            \
      rf::CacheType<Stored>::Key* k_cache, rf::CacheType<Stored>::Value* v_cache,                  \
      RF_SCALES_##has_scales const int32_t* __restrict__ block_table,                              \
      const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,              \
      const int32_t* __restrict__ context_len, RF_MORE_PARAMETERS const float* __restrict__ sinks, \
      float* __restrict__ out_f32, rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,     \
      rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset,                             \
      float* __restrict__ partial, float* __restrict__ partial_ml, uint32_t* arrived,              \
      int64_t q_stride, int64_t k_stride, int64_t v_stride, int32_t blocks_per_sequence,           \
      int32_t heads, int32_t kv_heads, int32_t rotary_dim, int32_t neox, int32_t norms_values,     \
      int32_t window, int32_t split_tokens, float eps, float scale, float softcap,                 \
      int32_t rotates_first) {                                                                     \
    const rf::NewTokens fresh{new_q,                                                               \
                              new_k,                                                               \
                              new_v,                                                               \
                              q_norm,                                                              \
                              k_norm,                                                              \
                              cosine,                                                              \
                              sine,                                                                \
                              q_stride,                                                            \
                              k_stride,                                                            \
                              v_stride,                                                            \
                              rotary_dim,                                                          \
                              neox != 0,                                                           \
                              rotates_first != 0,                                                  \
                              norms_values != 0,                                                   \
                              eps};                                                                \
    RF_FUNCTION(Stored, group)(                                                                    \
        {q,                                                                                        \
         fresh,                                                                                    \
         sequences,                                                                                \
         query_start,                                                                              \
         context_len,                                                                              \
         sinks,                                                                                    \
         heads,                                                                                    \
         window,                                                                                   \
         split_tokens,                                                                             \
         {scale, softcap}},                                                                        \
        {k_cache, v_cache, RF_K_SCALE_##has_scales, RF_V_SCALE_##has_scales, block_table,          \
         blocks_per_sequence, kv_heads},                                                           \
        {{out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset},                                  \
         partial,                                                                                  \
         partial_ml,                                                                               \
         arrived} RF_MORE_ARGUMENTS);                                                              \
  }
