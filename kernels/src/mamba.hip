// Mamba-2's recurrence (Dao and Gu 2024, arXiv:2405.21060), token by token:
//
//   dt = softplus(dt + dt_bias);  S = exp(dt a) S + dt x B^T;  y = S C + d x
//
// with a state S [head_dim, state_size] for each sequence and head. A block has some rows of one S
// in its registers from the first token to the last; eight lanes share a row.
#include "rf/recurrent.h"

namespace rf {

inline constexpr int kMambaThreads = 128;
inline constexpr int kMambaBlocks = 3;                            // of a multiprocessor, at least
inline constexpr int kMambaLanes = 8;                             // of a row
inline constexpr int kMambaLaneRows = 2;                          // of a lane
inline constexpr int kMambaGroups = kMambaThreads / kMambaLanes;  // of lanes
inline constexpr int kMambaRows = kMambaLaneRows * kMambaGroups;  // of a block
inline constexpr int kMambaFours = 128 / (4 * kMambaLanes);       // of a lane, at most

using Four = Vec<float, 4>;

struct MambaToken {
  Four b[kMambaFours], c[kMambaFours];
  float x[kMambaLaneRows], dt;
  int slot;  // for the state after it
};

}  // namespace rf

// x_bc: f32 [T, ...] with rows x_stride apart: x of all heads, then B and C of all groups. dt: f32
// [T, heads], rows dt_stride apart. a (negative), d, dt_bias: f32 [heads]. Head h is of group
// h / (heads / groups). state: f32 [slots, heads, head_dim, state_size], out: f32 [T, heads,
// head_dim]. state_size is at most 128; it, head_dim and x_stride are multiples of 4.
// Grid: (head_dim / 32, heads, sequences), block 128.
extern "C" __global__ __launch_bounds__(rf::kMambaThreads, rf::kMambaBlocks) void rf_mamba(
    const float* __restrict__ x_bc, const float* __restrict__ dt, const float* __restrict__ a,
    const float* __restrict__ d, const float* __restrict__ dt_bias,
    const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,
    const int32_t* __restrict__ context_len, const int32_t* __restrict__ reads,
    const int32_t* __restrict__ writes, float* __restrict__ state, float* __restrict__ out,
    int64_t x_stride, int64_t dt_stride, int32_t heads, int32_t head_dim, int32_t groups,
    int32_t state_size) {
  using namespace rf;
  const auto own =
      RecurrentSequence::of({sequences, query_start, context_len, reads, writes}, blockIdx.z);
  if (own.tokens == 0) return;
  const int head = blockIdx.y;
  const int group = head / (heads / groups);
  const int lane = static_cast<int>(threadIdx.x) % kMambaLanes;
  const int first_row =
      static_cast<int>(blockIdx.x) * kMambaRows + static_cast<int>(threadIdx.x) / kMambaLanes;
  const auto row_of = [&](int i) { return first_row + i * kMambaGroups; };
  const auto column_of = [&](int four) { return (four * kMambaLanes + lane) * 4; };
  const float rate = a[head], direct = d[head], bias = dt_bias[head];

  const auto token_at = [&](int token) {
    const int64_t at = own.first + token;
    const float* x = x_bc + at * x_stride;
    const float* b = x + heads * head_dim + group * state_size;
    MambaToken result;
#pragma unroll
    for (int i = 0; i < kMambaFours; ++i) {
      const bool there = column_of(i) < state_size;
      result.b[i] = there ? Four(load16(b + column_of(i))) : Four(0.0f);
      result.c[i] = there ? Four(load16(b + groups * state_size + column_of(i))) : Four(0.0f);
    }
#pragma unroll
    for (int i = 0; i < kMambaLaneRows; ++i) {
      result.x[i] = row_of(i) < head_dim ? x[head * head_dim + row_of(i)] : 0.0f;
    }
    result.dt = dt[at * dt_stride + head];
    result.slot = own.writes[token];
    return result;
  };

  const auto state_at = [&](int64_t slot, int i, int four) {
    float* own_state = state + (slot * heads + head) * head_dim * state_size;
    return own_state + row_of(i) * state_size + column_of(four);
  };
  Four s[kMambaLaneRows][kMambaFours];
#pragma unroll
  for (int i = 0; i < kMambaLaneRows; ++i) {
#pragma unroll
    for (int four = 0; four < kMambaFours; ++four) {
      const bool there = own.reads && row_of(i) < head_dim && column_of(four) < state_size;
      s[i][four] = there ? Four(load16(state_at(own.slot, i, four))) : Four(0.0f);
    }
  }

  MambaToken next = token_at(0);
  for (int token = 0; token < own.tokens; ++token) {
    const MambaToken now = next;
    if (token + 1 < own.tokens) next = token_at(token + 1);
    const float step = softplus(now.dt + bias);
    const float kept = exp(step * rate);
#pragma unroll
    for (int i = 0; i < kMambaLaneRows; ++i) {
      Four sums(0.0f);
#pragma unroll
      for (int four = 0; four < kMambaFours; ++four) {
        s[i][four] = s[i][four] * kept + now.b[four] * (step * now.x[i]);
        sums += s[i][four] * now.c[four];
      }
      float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      sum += shfl_xor<1>(sum);
      sum += shfl_xor<2>(sum);
      sum += shfl_xor<4>(sum);
      if (lane == 0 && row_of(i) < head_dim) {
        out[((own.first + token) * heads + head) * head_dim + row_of(i)] = sum + direct * now.x[i];
      }
    }
    if (now.slot < 0) continue;
#pragma unroll
    for (int i = 0; i < kMambaLaneRows; ++i) {
#pragma unroll
      for (int four = 0; four < kMambaFours; ++four) {
        if (row_of(i) >= head_dim || column_of(four) >= state_size) continue;
        store16(state_at(now.slot, i, four), s[i][four]);
      }
    }
  }
}
