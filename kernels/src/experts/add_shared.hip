// The result of a network beside experts is added to theirs.
#include "rf/norms/sum_of_two.h"

// shared[t] = mixed[t] + shares[t] * shared[t] for f32 rows of `features` elements (a multiple of
// 4). shares: f32 [rows]; null: all are 1. Grid: rows, block 256.
extern "C" __global__ __launch_bounds__(256) void rf_add_shared(const float* __restrict__ mixed,
                                                                float* __restrict__ shared,
                                                                const float* __restrict__ shares,
                                                                int features) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * features;
  const float share = shares ? shares[blockIdx.x] : 1.0f;
  for (int i = threadIdx.x * 4; i < features; i += blockDim.x * 4) {
    rf::store16(shared + row + i,
                rf::load16(mixed + row + i) + share * rf::load16(shared + row + i));
  }
}

// residual = (residual + sum) * scale, then the norm of residual, as rf_add_rms_norm. The sum is
// that of rf_add_shared; where mixed_weight or shared_weight, f32 [features], is not null, of the
// norm of `mixed` or `shared` in its place. post_weight: of a norm of the sum, null = none.
// Grid: (rows), block as for rf_add_rms_norm, at most 512.
extern "C" __global__ __launch_bounds__(512) void rf_add_shared_rms_norm(
    const float* __restrict__ mixed, const float* __restrict__ mixed_weight,
    const float* __restrict__ shared, const float* __restrict__ shared_weight,
    const float* __restrict__ shares, float* __restrict__ residual,
    const float* __restrict__ post_weight, const float* __restrict__ scale,
    const float* __restrict__ weight, float* out_f32, rf::half* __restrict__ out_f16,
    int8_t* __restrict__ out_q, rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset,
    int32_t hidden_size, float eps) {
  rf::wait_for_previous(mixed, shared, shares, residual);
  rf::let_next_begin_if_few_rows();
  const rf::SumOfTwo sum{{mixed, mixed_weight}, {shared, shared_weight}, shares};
  sum.add_and_norm(blockIdx.x, residual, post_weight, scale,
                   {weight, {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}}, hidden_size,
                   eps);
}
