// Mamba-2's recurrence (Dao and Gu 2024, arXiv:2405.21060), token by token:
//
//   dt = softplus(dt + dt_bias);  S = exp(dt a) S + dt x B^T;  y = S C + d x
//
// with a state S [head_dim, state_size] for each sequence and head. kMambaThreads threads, a part
// of a block, have some rows of one S in their registers from the first token to the last; eight
// lanes share a row. Written with fma, so that all kernels that do this round alike.
#pragma once

#include "rf/recurrent/recurrent.h"

namespace rf {

inline constexpr int kMambaThreads = 128;                         // of a part
inline constexpr int kMambaLanes = 8;                             // of a row
inline constexpr int kMambaLaneRows = 2;                          // of a lane
inline constexpr int kMambaGroups = kMambaThreads / kMambaLanes;  // of lanes
inline constexpr int kMambaRows = kMambaLaneRows * kMambaGroups;  // of a part
inline constexpr int kMambaFours = 128 / (4 * kMambaLanes);       // of a lane, at most

struct MambaToken {
  Vec<float, 4> b[kMambaFours], c[kMambaFours];
  float x[kMambaLaneRows], dt;
  int slot;  // for the state after it
};

// The rates of a head.
struct MambaHead {
  float a, d, bias;
};

// What a thread has of a state: parts of some rows.
struct MambaState {
  Vec<float, 4> s[kMambaLaneRows][kMambaFours];
  int first_row, lane, head_dim, state_size;

  __device__ __forceinline__ MambaState(int part, int head_dim, int state_size)
      : first_row(part * kMambaRows + static_cast<int>(threadIdx.x) % kMambaThreads / kMambaLanes),
        lane(static_cast<int>(threadIdx.x) % kMambaLanes),
        head_dim(head_dim),
        state_size(state_size) {}

  __device__ __forceinline__ int row_of(int i) const { return first_row + i * kMambaGroups; }
  __device__ __forceinline__ int column_of(int four) const {
    return (four * kMambaLanes + lane) * 4;
  }
  // Whether this thread has the result of its row.
  __device__ __forceinline__ bool has_result(int i) const {
    return lane == 0 && row_of(i) < head_dim;
  }

  // Four of B or C, zeros beyond their end.
  __device__ __forceinline__ Vec<float, 4> of_group(const float* x, int four) const {
    return column_of(four) < state_size ? Vec<float, 4>(load16(x + column_of(four)))
                                        : Vec<float, 4>(0.0f);
  }
  // Of the head's inputs, the one of a row.
  __device__ __forceinline__ float of_row(const float* x, int i) const {
    return row_of(i) < head_dim ? x[row_of(i)] : 0.0f;
  }

  // from: f32 [head_dim, state_size], or null for zeros.
  __device__ __forceinline__ void load(const float* from) {
#pragma unroll
    for (int i = 0; i < kMambaLaneRows; ++i) {
#pragma unroll
      for (int four = 0; four < kMambaFours; ++four) {
        const bool there = from && row_of(i) < head_dim && column_of(four) < state_size;
        s[i][four] = there ? Vec<float, 4>(load16(from + row_of(i) * state_size + column_of(four)))
                           : Vec<float, 4>(0.0f);
      }
    }
  }

  __device__ __forceinline__ void store(float* to) const {
#pragma unroll
    for (int i = 0; i < kMambaLaneRows; ++i) {
#pragma unroll
      for (int four = 0; four < kMambaFours; ++four) {
        if (row_of(i) >= head_dim || column_of(four) >= state_size) continue;
        store16(to + row_of(i) * state_size + column_of(four), s[i][four]);
      }
    }
  }

  // Takes a token in; results of these rows.
  __device__ __forceinline__ void take(const MambaToken& now, const MambaHead& head,
                                       float (&results)[kMambaLaneRows]) {
#pragma clang fp contract(off)
    using Four = Vec<float, 4>;
    const float step = softplus(now.dt + head.bias);
    const float kept = exp(step * head.a);
#pragma unroll
    for (int i = 0; i < kMambaLaneRows; ++i) {
      Four sums(0.0f);
#pragma unroll
      for (int four = 0; four < kMambaFours; ++four) {
        s[i][four] = fma(now.b[four], Four(step * now.x[i]), s[i][four] * kept);
        sums = fma(s[i][four], now.c[four], sums);
      }
      float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      sum += shfl_xor<1>(sum);
      sum += shfl_xor<2>(sum);
      sum += shfl_xor<4>(sum);
      results[i] = fma(head.d, now.x[i], sum);
    }
  }
};

}  // namespace rf
