// A row of scores over the vocabulary: walking it, and the order of its tokens.
#pragma once

#include "rf/wave.h"

namespace rf {

inline constexpr float kNoScore = -kInfinity;
inline constexpr int kNoToken = -1;

// A token and its score. A NaN anywhere makes the score of the best token NaN.
struct Best {
  float score;
  int32_t token;
};

__device__ __forceinline__ bool is_nan(float x) { return x != x; }
__device__ __forceinline__ bool is_finite(float x) { return abs(x) < kInfinity; }

// Whether a comes before b: the larger score, then the smaller id.
__device__ __forceinline__ bool precedes(Best a, Best b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

__device__ __forceinline__ Best better(Best a, Best b) {
  const bool take_b = !is_nan(a.score) && (is_nan(b.score) || precedes(b, a));
  return {take_b ? b.score : a.score, take_b ? b.token : a.token};
}

inline constexpr int kLastToken = 0x7fffffff;
inline constexpr Best kWorst{kNoScore, kLastToken};

__device__ __forceinline__ Best best_of(const Best* parts, int count) {
  Best best = kWorst;
  for (int i = 0; i < count; ++i) best = better(best, parts[i]);
  return best;
}

// The same, for which all threads of a block look together.
__device__ __forceinline__ Best best_of_block(const Best* parts, int count, Best* scratch) {
  Best best = kWorst;
  for (int i = threadIdx.x; i < count; i += static_cast<int>(blockDim.x)) {
    best = better(best, parts[i]);
  }
  return block_reduce(best, scratch, better);
}

// Calls visit(token, scores) for the tokens [begin, end), four at a time, spread over the block;
// begin is a multiple of 4. What lies behind `end` in the last four is kNoScore.
template <class Visit>
__device__ __forceinline__ void for_each_four(const float* row, int begin, int end, Visit visit) {
  const bool aligned = (reinterpret_cast<uint64_t>(row) & 15) == 0;
  for (int i = begin + 4 * static_cast<int>(threadIdx.x); i < end;
       i += 4 * static_cast<int>(blockDim.x)) {
    Vec<float, 4> scores = kNoScore;
    if (aligned && i + 4 <= end) {
      scores = load16(row + i);
    } else {
      for (int k = 0; k < 4; ++k) {
        if (i + k < end) scores[k] = row[i + k];
      }
    }
    visit(i, scores);
  }
}

// The tokens that block blockIdx.x of gridDim.x takes.
struct TokenRange {
  int begin, end;
};

__device__ __forceinline__ TokenRange token_range(int vocab) {
  const int parts = static_cast<int>(gridDim.x);
  const int size = ((vocab + parts - 1) / parts + 3) / 4 * 4;
  const int begin = min(static_cast<int>(blockIdx.x) * size, vocab);
  return {begin, min(begin + size, vocab)};
}

}  // namespace rf
