// Mamba-2's recurrence over the tokens of each sequence: rf/recurrent/mamba.h.
#include "rf/recurrent/mamba.h"

namespace rf {

inline constexpr int kMambaBlocks = 3;  // of a multiprocessor, at least

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
  MambaState rows(static_cast<int>(blockIdx.x), head_dim, state_size);
  const MambaHead rates{a[head], d[head], dt_bias[head]};

  const auto token_at = [&](int token) {
    const int64_t at = own.first + token;
    const float* x = x_bc + at * x_stride;
    const float* b = x + heads * head_dim + group * state_size;
    MambaToken result;
#pragma unroll
    for (int i = 0; i < kMambaFours; ++i) {
      result.b[i] = rows.of_group(b, i);
      result.c[i] = rows.of_group(b + groups * state_size, i);
    }
#pragma unroll
    for (int i = 0; i < kMambaLaneRows; ++i) result.x[i] = rows.of_row(x + head * head_dim, i);
    result.dt = dt[at * dt_stride + head];
    result.slot = own.writes[token];
    return result;
  };
  const auto state_in = [&](int64_t slot) {
    return state + (slot * heads + head) * head_dim * state_size;
  };
  rows.load(own.reads ? state_in(own.slot) : nullptr);

  MambaToken next = token_at(0);
  for (int token = 0; token < own.tokens; ++token) {
    const MambaToken now = next;
    if (token + 1 < own.tokens) next = token_at(token + 1);
    float results[kMambaLaneRows];
    rows.take(now, rates, results);
    float* to = out + ((own.first + token) * heads + head) * head_dim;
#pragma unroll
    for (int i = 0; i < kMambaLaneRows; ++i) {
      if (rows.has_result(i)) to[rows.row_of(i)] = results[i];
    }
    if (now.slot >= 0) rows.store(state_in(now.slot));
  }
}
