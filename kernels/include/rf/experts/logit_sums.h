// A router's logits as sums that are the same in any order: of what each kActBlock columns of a row
// give, in multiples of 2^-30. So blocks that have some of the columns each may add their parts,
// and the logits have the bits of those that one block makes.
#pragma once

#include "rf/fetch_line.h"
#include "rf/norms/norm.h"

namespace rf {

using LogitSum = int64_t;
inline constexpr float kLogitSteps = 1 << 30;  // of 1

// A part is at most 2^23, which leaves room for those of a row. One that is not a number is the
// least: the row itself tells of it.
__device__ __forceinline__ LogitSum logit_steps(float part) {
  constexpr float kMost = 1 << 23;
  return static_cast<LogitSum>(rint(min(max(part, -kMost), kMost) * kLogitSteps));
}

// The logit of a row that lacks a factor.
__device__ __forceinline__ float logit_of(LogitSum sum, float factor) {
  return static_cast<float>(sum) * (1.0f / kLogitSteps) * factor;
}

__device__ __forceinline__ float logit_product(Vec<float, 4> x, Vec<float, 4> router) {
  float sum = 0.0f;
  for (int k = 0; k < 4; ++k) sum = fma(x[k], router[k], sum);
  return sum;
}

// Adds up kCount values, a power of two, over kActLanes lanes, in the order of squares_of(). Each
// lane gets the sums of some values; returns the first of these.
template <int kDistance = 1, int kCount, int kOfLane>
__device__ __forceinline__ int lane_sums(const float (&values)[kCount], float (&sums)[kOfLane],
                                         int first = 0) {
  if constexpr (kDistance == kActLanes) {
    static_assert(kCount == kOfLane);
    for (int i = 0; i < kCount; ++i) sums[i] = values[i];
    return first;
  } else if constexpr (kCount == 1) {
    const float both[1] = {values[0] + shfl_xor<kDistance>(values[0])};
    return lane_sums<2 * kDistance>(both, sums, first);
  } else {
    constexpr int kHalf = kCount / 2;
    const bool is_upper = (lane_id() & kDistance) != 0;
    float both[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float lower = values[i], upper = values[i + kHalf];
      both[i] = (is_upper ? upper : lower) + shfl_xor<kDistance>(is_upper ? lower : upper);
    }
    return lane_sums<2 * kDistance>(both, sums, is_upper ? first + kHalf : first);
  }
}

// What kActBlock columns give to logits, of which each lane has kActLanes-th as many; returns the
// first of these.
template <int kCount, int kOfLane>
__device__ __forceinline__ int logit_parts(const float (&products)[kCount],
                                           LogitSum (&parts)[kOfLane]) {
  float sums[kOfLane];
  const int first = lane_sums(products, sums);
  for (int i = 0; i < kOfLane; ++i) parts[i] = logit_steps(sums[i]);
  return first;
}

// The sum over the groups of kActLanes lanes of a wave.
template <int kDistance = kActLanes>
__device__ __forceinline__ LogitSum wave_logit(LogitSum sum) {
  if constexpr (kDistance < kWave) {
    return wave_logit<2 * kDistance>(sum + shfl_xor<kDistance>(sum));
  } else {
    return sum;
  }
}

// Has sums begin again, for who adds to them next: block 0 of a kernel does that.
__device__ __forceinline__ void clear_logits(LogitSum* sums, int count) {
  if (blockIdx.x != 0) return;
  for (int i = threadIdx.x; i < count; i += static_cast<int>(blockDim.x)) sums[i] = 0;
}

struct NoRouter {
  __device__ __forceinline__ void fetch(int /*block*/) const {}
  __device__ __forceinline__ void ask(int /*block*/) const {}
  __device__ __forceinline__ void add(const float (& /*x*/)[kActBlock], int /*block*/) const {}
};

// What a router makes of kActBlock columns that a block has, added to its sums by all its threads.
struct RouterColumns {
  const float* router;  // [count, features]
  LogitSum* sums;       // [count]
  int count;
  int features;

  // Those that a thread multiplies with first: kTogether rows of the router, of kActLanes threads
  // each.
  static constexpr int kTogether = 4;
  Vec<float, 4> rows[kTogether] = {};

  static_assert(kActBlock * sizeof(float) == kLineBytes);

  // Has the columns of the router come nearer.
  __device__ __forceinline__ void fetch(int block) const {
    for (int i = threadIdx.x; i < count; i += static_cast<int>(blockDim.x)) {
      fetch_line(columns(i, block));
    }
  }

  // Asks for the first rows.
  __device__ __forceinline__ void ask(int block) { load(own_row(), block); }

  // x: the columns, times what the norm of the row multiplies them with, in LDS where some threads
  // have put them.
  __device__ __forceinline__ void add(const float (&x)[kActBlock], int block) {
    __syncthreads();
    const Vec<float, 4> own = load16(x + four());
    const int of_wave = lane_id() / kActLanes;  // so that whole waves go on together
#pragma unroll 1
    for (int first = own_row(); first - of_wave < count; first += kTogether * step()) {
      if (first != own_row()) load(first, block);
      float products[kTogether], sum[1];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) products[k] = logit_product(own, rows[k]);
      const int row = first + lane_sums(products, sum) * step();
      const bool is_one = (lane_id() & kActLanes / 2) == 0;  // of the two lanes with this sum
      if (is_one && row < count) atomic_add(sums + row, logit_steps(sum[0]));
    }
  }

 private:
  static __device__ __forceinline__ int four() { return lane_id() % kActLanes * 4; }
  static __device__ __forceinline__ int own_row() {
    return static_cast<int>(threadIdx.x) / kActLanes;
  }
  static __device__ __forceinline__ int step() { return static_cast<int>(blockDim.x) / kActLanes; }

  __device__ __forceinline__ void load(int first, int block) {
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      rows[k] = load16(columns(min(first + k * step(), count - 1), block) + four());
    }
  }

  __device__ __forceinline__ const float* columns(int logit, int block) const {
    return router + static_cast<int64_t>(logit) * features + block * kActBlock;
  }
};

}  // namespace rf
