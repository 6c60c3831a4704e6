// What decode and prefill attention share: their arguments, masks and scores.
#pragma once

#include "rf/attention/kv_cache.h"

namespace rf {

// Running maxima start here instead of at minus infinity, so that differences stay finite.
inline constexpr float kLowestScore = -1e30f;

// One layer's view of the cache, of a type as kv_cache.h has them, const where nothing is written.
template <class Stored, class Scale = float>
struct Cache {
  typename CacheType<Stored>::Key* k;
  typename CacheType<Stored>::Value* v;
  Scale *k_scale, *v_scale;
  const int32_t* block_table;  // [B, blocks_per_sequence]
  int blocks_per_sequence;
  int kv_heads;

  __device__ __forceinline__ const int32_t* blocks_of(int sequence) const {
    return block_table + static_cast<int64_t>(sequence) * blocks_per_sequence;
  }
};

// How the product of query and key becomes a score.
struct ScoreRule {
  float scale;
  float softcap;  // 0 = none

  __device__ __forceinline__ float capped(float score) const {
    return softcap * tanh(score / softcap);
  }
  // In units of log2, so that the softmax is made of exp2.
  __device__ __forceinline__ float operator()(float product) const {
    const float score = product * scale;
    return (softcap > 0.0f ? capped(score) : score) * kLog2E;
  }
};

// What the sink of a head, if there are sinks, adds to the total of a softmax relative to
// `highest`, in units of log2: a score without a value (Xiao et al. 2024). Far above all scores it
// is infinite here, and the result zero.
__device__ __forceinline__ float sink_weight(const float* sinks, int head, float highest) {
  return sinks ? exp2(fma(sinks[head], kLog2E, -highest)) : 0.0f;
}

// First position that a query at `position` sees; window 0 = all.
__device__ __forceinline__ int first_visible(int position, int window) {
  return window > 0 ? max(0, position - window + 1) : 0;
}

inline constexpr int kSplitRound = 64;     // tokens that the waves of a block read at once, mostly
inline constexpr int kLeastRounded = 512;  // visible tokens of whose splits are whole rounds

// The tokens [begin, end) that one split of a sequence reads.
struct SplitRange {
  int begin, end;
  bool only;  // there is no other split
};

// Where all splits of a sequence begin but those of `shared` tokens at its front, which end where
// these do (rf/decode/team.h).
__device__ __forceinline__ int own_begin(int context, int window, int shared) {
  return max(first_visible(context - 1, window) / kBlockTokens * kBlockTokens, shared);
}

__device__ __forceinline__ int splits_in(int tokens, int split_tokens) {
  return (tokens + split_tokens - 1) / split_tokens;
}

// The tokens of a split where there are so many splits: `most`, which the launch was given for the
// longest context that it has room for, or fewer, so that a shorter one keeps all of them busy.
__device__ __forceinline__ int even_split(int context, int window, int most, int splits) {
  if (splits == 1) return most;
  const int visible = context - own_begin(context, window, 0);
  const int multiple = visible >= kLeastRounded ? kSplitRound : kBlockTokens;
  return min(most, max(1, splits_in(splits_in(visible, splits), multiple)) * multiple);
}

// Without a window if tokens are shared.
__device__ __forceinline__ SplitRange split_range(int context, int window, int split_tokens,
                                                  int split, int shared = 0) {
  const int front = splits_in(shared, split_tokens);
  if (split < front) {
    return {split * split_tokens, min((split + 1) * split_tokens, shared), false};
  }
  const int first = own_begin(context, window, shared);
  const int begin = first + (split - front) * split_tokens;
  return {begin, min(begin + split_tokens, context), front == 0 && first + split_tokens >= context};
}

// How many splits of a context have tokens that are visible.
__device__ __forceinline__ int splits_of(int context, int window, int split_tokens,
                                         int shared = 0) {
  return splits_in(shared, split_tokens) +
         splits_in(context - own_begin(context, window, shared), split_tokens);
}

}  // namespace rf
