// Norms by root mean square, and the addition before them.
#include "rf/rms_norm.h"

// Grid: (rows). x and weight f32.
extern "C" __global__ __launch_bounds__(1024) void rf_rms_norm(
    const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out_f32,
    rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,
    rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset, int32_t hidden_size,
    float eps) {
  rf::rms_norm<false>(blockIdx.x, {x},
                      {weight, {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}}, {},
                      hidden_size, eps, [=] {
                        rf::wait_for_previous(x);
                        rf::let_next_begin_if_few_rows();
                      });
}

// residual = (residual + delta) * scale, then the norm of residual. post_weight: what is added is
// the norm of delta, null = delta itself. scale: one number, null = 1. Grid: (rows).
extern "C" __global__ __launch_bounds__(1024) void rf_add_rms_norm(
    const float* __restrict__ delta, float* __restrict__ residual,
    const float* __restrict__ post_weight, const float* __restrict__ scale,
    const float* __restrict__ weight, float* __restrict__ out_f32, rf::half* __restrict__ out_f16,
    int8_t* __restrict__ out_q, rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset,
    int32_t hidden_size, float eps) {
  rf::rms_norm<true>(blockIdx.x, {delta, residual, residual, post_weight, scale},
                     {weight, {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}}, {},
                     hidden_size, eps, [=] {
                       rf::wait_for_previous(delta, residual);
                       rf::let_next_begin_if_few_rows();
                     });
}

// x itself, in the forms that a norm has. Grid: (rows).
extern "C" __global__ __launch_bounds__(1024) void rf_give_rows(
    const float* __restrict__ x, float* __restrict__ out_f32, rf::half* __restrict__ out_f16,
    int8_t* __restrict__ out_q, rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset,
    int32_t hidden_size) {
  rf::rms_norm<false, false>(blockIdx.x, {x},
                             {nullptr, {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}}, {},
                             hidden_size, 0.0f, [=] {
                               rf::wait_for_previous(x);
                               rf::let_next_begin_if_few_rows();
                             });
}

// residual += delta, and the sum in the forms that a norm has. post_weight: as above, with eps.
// Grid: (rows).
extern "C" __global__ __launch_bounds__(1024) void rf_add_rows(
    const float* __restrict__ delta, float* __restrict__ residual,
    const float* __restrict__ post_weight, float* __restrict__ out_f32,
    rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,
    rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset, int32_t hidden_size,
    float eps) {
  rf::rms_norm<true, false>(blockIdx.x, {delta, residual, residual, post_weight},
                            {nullptr, {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}}, {},
                            hidden_size, eps, [=] {
                              rf::wait_for_previous(delta, residual);
                              rf::let_next_begin_if_few_rows();
                            });
}

// x: f32 [rows, hidden_size], rows stride apart (a multiple of 4), in place. Grid: (rows).
extern "C" __global__ __launch_bounds__(1024) void rf_rms_norm_columns(
    float* __restrict__ x, const float* __restrict__ weight, int64_t stride, int32_t hidden_size,
    float eps) {
  __shared__ float partial[rf::kMaxWaves];
  float* row = x + static_cast<int64_t>(blockIdx.x) * stride;
  rf::NormRow values, weights;
  float squares = 0.0f;
#pragma unroll
  for (int step = 0; step < rf::kNormSteps; ++step) {
    const int i = rf::norm_index(step);
    values[step] = 0.0f;
    weights[step] = 0.0f;
    if (i >= hidden_size) continue;
    weights[step] = rf::load16(weight + i);
    values[step] = rf::load16(row + i);
    squares += rf::sum_four(values[step] * values[step]);
  }
  const float mean = rf::block_sum(squares, partial) / static_cast<float>(hidden_size);
  const float factor = rf::rsqrt(mean + eps);
#pragma unroll
  for (int step = 0; step < rf::kNormSteps; ++step) {
    const int i = rf::norm_index(step);
    if (i < hidden_size) rf::store16(row + i, values[step] * factor * weights[step]);
  }
}
