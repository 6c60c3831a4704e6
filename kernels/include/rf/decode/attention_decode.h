// Attention of one new token a sequence over the paged cache (flash decoding, Dao et al. 2023).
//
// A block serves one kv head: its kGroup query heads share every load of K and V. The context is
// split over blocks of at most `split_tokens`. The last of them to finish merges what they found,
// or attention_reduce.hip does, with the same result.
#pragma once

#include "rf/decode/joint_norms.h"
#include "rf/decode/kernel.h"
#include "rf/decode/new_token.h"

namespace rf {

// Tokens of the longest split that is brought into the L2 cache ahead: what all splits of a longer
// context read has no room there, and would be read twice.
inline constexpr int kFetchedTokens = 192;

// Rotates `heads` queries of a token from `first_head` on into LDS. The block that reads the
// token's own key does the same to that, and puts key and value into the cache before anybody reads
// them.
template <HeadNorms kNorms, class Stored, int kKeyDim, int kValueDim, int kGroup>
__device__ __forceinline__ void rope_new_token(const NewTokens& fresh, const Cache<Stored>& cache,
                                               int token, int position, int first_head, int heads,
                                               int kv_head, int64_t cache_row, bool owns_key,
                                               const RowFactors& factors,
                                               half (&queries)[kGroup][kKeyDim], float* scratch) {
  constexpr int kPairs = kPairsOfLane<(kKeyDim > kValueDim ? kKeyDim : kValueDim)>;
  const HeadShape key{kKeyDim, fresh.rotary_dim, fresh.neox};
  const int all = heads + (owns_key ? 2 : 0);
  for (int index = uniform(wave_id()); index < all; index += kDecodeWaves) {
    if (index < heads) {
      const int column = (first_head + index) * kKeyDim;
      const float* row = fresh.q + token * fresh.q_stride + column;
      const float* norm = fresh.q_norm + (kNorms == HeadNorms::kJoint ? column : 0);
      store_head(key,
                 rotated_head<kNorms, kKeyDim, kPairs>(fresh, position, row, norm, factors.query),
                 queries[index]);
    } else {
      store_new_token<kNorms, Stored, kKeyDim, kValueDim>(
          fresh, cache, token, position, kv_head, cache_row, index > heads, factors.key, scratch);
    }
  }
  __syncthreads();
}

// Grid: (kv_heads * ceil(group / kGroup), splits, sequences), kDecodeWaves waves a block. All
// blocks that read a new token's own key put it into the cache, if it is not there.
template <HeadNorms kNorms, class Stored, int kKeyDim, int kValueDim, int kGroup,
          bool kValuesInKeys>
__device__ __forceinline__ void attention_decode(const DecodeInput& in, const Cache<Stored>& cache,
                                                 const DecodeOutput& out) {
  // Rows of latent vectors are stored by kernels of their own.
  constexpr bool kMayRope = !kValuesInKeys;

  const int sequence = in.sequences[blockIdx.z];
  int context;
  if constexpr (kBeginsEarly) {
    // Most often the sequences are all of the step, and neither load waits for the other.
    const int likely = in.context_len[blockIdx.z];
    context = sequence == static_cast<int>(blockIdx.z) ? likely : in.context_len[sequence];
  } else {
    context = in.context_len[sequence];
  }
  const int split_tokens =
      even_split(context, in.window, in.split_tokens, static_cast<int>(gridDim.y));
  const SplitRange range = split_range(context, in.window, split_tokens, blockIdx.y);
  // Wanted at the end alone: until then, it would take a register that some targets do not have.
  __shared__ int used;
  if (threadIdx.x == 0) used = splits_of(context, in.window, split_tokens);
  if constexpr (!kBeginsEarly) {
    if (range.begin >= context) return;
  }

  const int group = in.heads / cache.kv_heads;
  const int tiles = (group + kGroup - 1) / kGroup;
  const int kv_head = blockIdx.x / tiles;
  const int first_head = static_cast<int>(blockIdx.x) % tiles * kGroup;  // within the group
  const int heads = min(kGroup, group - first_head);
  // Where results go waits in LDS, where the scalar registers are needed in the meantime.
  constexpr bool kWaits = kNorms == HeadNorms::kJoint || kKeyDim > kNarrowHeadDim;
  __shared__ ActOutput waiting;
  if (kWaits && threadIdx.x == 0) waiting = out.attended;
  const ActOutput& attended = kWaits ? waiting : out.attended;

  const int wave = uniform(wave_id());
  const int last = context - 1;
  const int32_t* blocks = cache.blocks_of(sequence);
  const auto walk = [&] {
    return TokenWalk{cache.blocks_of(sequence),
                     kv_head,
                     cache.kv_heads,
                     range.begin,
                     range.end,
                     first_visible(context - 1, in.window),
                     context};
  };

  using Wave = typename DecodeWave<Stored, kKeyDim, kValueDim, kGroup, kValuesInKeys>::Type;
  using NewRows = NewTokenRows<kNorms, Stored, kKeyDim, kValueDim, kGroup>;
  constexpr bool kAsksAhead = kBeginsEarly && Wave::kAsksAhead;
  Wave own;
  [[maybe_unused]] typename Wave::First first;
  [[maybe_unused]] NewRows rows;
  [[maybe_unused]] int token = 0, last_block = 0;
  [[maybe_unused]] float sink = 0.0f;  // of the head with the number of the thread
  const bool is_fresh = kMayRope && (kNorms == HeadNorms::kJoint || in.fresh.q);
  if constexpr (kBeginsEarly) {
    // What was there when the kernel before began may be read before that has ended: all but what
    // is of the new token, whose key may be in the cache or not. Once the next kernel may begin,
    // its weights are in the way of all that is asked for.
    const bool owns_key = is_fresh && in.fresh.k && range.end == context;
    if (!is_fresh) wait_for_previous(in.q);
    if (range.begin < context) {
      token = in.query_start[sequence];
      if (is_fresh) {
        rows.find(in.fresh, last, token, kv_head * group + first_head, heads, kv_head, owns_key,
                  wave);
      }
      const int own_head = static_cast<int>(threadIdx.x);
      if (in.sinks && own_head < heads) sink = in.sinks[kv_head * group + first_head + own_head];
      if (owns_key) last_block = blocks[last / kBlockTokens];
      if constexpr (kAsksAhead) {
        const int known = owns_key ? last : context;
        Wave::ask(cache, walk(), known, wave, kDecodeWaves, first);
        if (gridDim.z == 1 && split_tokens <= kFetchedTokens) {
          Wave::fetch_rest(cache, walk(), known, wave, kDecodeWaves);
        }
      }
    }
    if (is_fresh) rows.wait();
    let_next_begin_if_few();
    if (range.begin >= context) return;
    if (is_fresh) rows.load(in.fresh);
  }

  if constexpr (!kBeginsEarly) token = in.query_start[sequence];
  const auto query_row = [&] {
    return static_cast<int64_t>(token) * in.heads + kv_head * group + first_head;
  };
  alignas(16) __shared__ float wave_output[kDecodeWaves][kGroup][kValueDim];
  if (is_fresh) {
    alignas(16) __shared__ half queries[kGroup][kKeyDim];
    if constexpr (!kBeginsEarly) last_block = blocks[last / kBlockTokens];
    const int64_t row = cache_row(last_block, last % kBlockTokens, kv_head, cache.kv_heads);
    const bool owns_key = in.fresh.k && range.end == context;
    if (owns_key && tiles > 1) stored_by_each_block<Stored, kKeyDim, kValueDim>(cache, row);
    RowFactors factors;
    if constexpr (kNorms == HeadNorms::kJoint) {
      static_assert(sizeof(wave_output) >= kJointSquares * sizeof(float));
      factors = joint_norm_factors(in.fresh, token, in.heads * kKeyDim,
                                   owns_key ? cache.kv_heads * kKeyDim : 0, wave_output[0][0]);
    }
    if constexpr (kBeginsEarly) {
      __shared__ typename NewRows::Row new_row;
      rows.take(in.fresh, cache, heads, row, wave, factors, queries, new_row, wave_output[wave][0]);
      __syncthreads();
      own.load_queries(queries[0], heads);
      if constexpr (kAsksAhead) {
        if (owns_key) own.add_last(first, walk(), wave, new_row);
      }
    } else {
      rope_new_token<kNorms, Stored, kKeyDim, kValueDim, kGroup>(
          in.fresh, cache, token, last, kv_head * group + first_head, heads, kv_head, row, owns_key,
          factors, queries, wave_output[wave][0]);
      own.load_queries(queries[0], heads);
    }
  } else {
    own.load_queries(in.q + query_row() * kKeyDim, heads);
  }

  if constexpr (kAsksAhead) {
    own.attend(cache, walk(), wave, kDecodeWaves, in.rule, first);
  } else {
    own.attend(cache, walk(), wave, kDecodeWaves, in.rule);
  }
  own.finish();

  __shared__ float wave_highest[kDecodeWaves][kGroup];
  __shared__ float wave_total[kDecodeWaves][kGroup];
  __shared__ float own_sinks[kGroup];
  if (kBeginsEarly && threadIdx.x < kGroup) own_sinks[threadIdx.x] = sink;
  own.store(wave_output[wave], wave_highest[wave], wave_total[wave]);
  __syncthreads();

  using Splits = SplitResults<kValueDim>;
  const int64_t first_split =
      (static_cast<int64_t>(blockIdx.z) * in.heads + kv_head * group + first_head) * gridDim.y;
  const Splits splits{out.partial + first_split * kValueDim,
                      reinterpret_cast<MaxSum*>(out.partial_ml) + first_split,
                      static_cast<int>(gridDim.y)};
  const float* sinks = nullptr;
  if (in.sinks) sinks = kBeginsEarly ? own_sinks : in.sinks + kv_head * group + first_head;

  // Four elements a lane; whole waves stay together, as ActOutput wants. Where the next kernel
  // waits for this one, two rounds are under way together.
  constexpr int kElements = kGroup * kValueDim;
  constexpr int kRound = 4 * kDecodeThreads;
  constexpr int kTogether = kBeginsEarly && kElements > kRound ? 2 : 1;
  for (int from = 0; from < kElements; from += kTogether * kRound) {
    Vec<float, 4> sums[kTogether]{};
    MaxSum softmax[kTogether];
    int heads_of[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int i = from + k * kRound + 4 * static_cast<int>(threadIdx.x);
      const int head = min(i / kValueDim, kGroup - 1);
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
      if (range.only) total += sink_weight(sinks, min(head, heads - 1), highest);
      sums[k] = sum;
      softmax[k] = {highest, total};
      heads_of[k] = head;
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int i = from + k * kRound + 4 * static_cast<int>(threadIdx.x);
      const bool valid = i < kElements && heads_of[k] < heads;
      if (range.only) {
        attended.store(query_row() * kValueDim + i, sums[k] * (1.0f / softmax[k].total), valid);
      } else if (valid) {
        splits.store(heads_of[k], blockIdx.y, i % kValueDim, sums[k], softmax[k]);
      }
    }
  }
  if (range.only || !out.arrived) return;

  if (!is_last_block(out.arrived + blockIdx.z * gridDim.x + blockIdx.x, used)) return;
  __shared__ MaxSum merged[kGroup];
  merge_splits<kDecodeThreads, kGroup>(splits, used, heads, sinks, query_row() * kValueDim,
                                       attended, merged);
}

}  // namespace rf

// The kernels of a translation unit, which it names with RF_WHAT. RF_HEAD is the head size of the
// unit, RF_KEY_DIM and RF_VALUE_DIM its elements, RF_VALUES_IN_KEYS whether v_cache is k_cache,
// with values as the end of its rows, RF_IS_COMMON whether most models have it, and RF_GROUPS(X) is
// X(group) for each number of heads that a block may have.
#define RF_MORE_PARAMETERS
#define RF_MORE_ARGUMENTS
#ifndef RF_NORMS  // Larger heads have no scalar registers for norms behind rope.
#define RF_NORMS (RF_IS_COMMON ? rf::HeadNorms::kOfHeads : rf::HeadNorms::kBeforeRope)
#endif
#define RF_FUNCTION(Stored, group) \
  rf::attention_decode<RF_NORMS, Stored, RF_KEY_DIM, RF_VALUE_DIM, group, RF_VALUES_IN_KEYS>
#define RF_DECODE(kind, Stored, group, has_scales)                                              \
  RF_ATTENTION_DECODE(RF_NAME(RF_WHAT, kind, RF_HEAD, group), RF_BLOCKS(Stored, group), Stored, \
                      group, has_scales)
#define RF_F16(group) RF_DECODE(f16, rf::half, group, no)
#define RF_INT8(group) RF_DECODE(int8, int8_t, group, yes)
