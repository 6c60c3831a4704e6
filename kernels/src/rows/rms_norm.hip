// Norms by root mean square, and the addition before them.
#include "rf/norms/rms_norm.h"

// x: f32 [rows, hidden_size], rows stride apart (a multiple of 4). weight: f32. Grid: (rows).
extern "C" __global__ __launch_bounds__(1024) void rf_rms_norm(
    const float* __restrict__ x, const float* RF_EARLY weight, float* __restrict__ out_f32,
    rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,
    rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset, int64_t stride,
    int32_t hidden_size, float eps) {
  x += static_cast<int64_t>(blockIdx.x) * (stride - hidden_size);
  rf::rms_norm<false>(blockIdx.x, rf::WholeRows{x}, {},
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
    const float* RF_EARLY weight, float* __restrict__ out_f32, rf::half* __restrict__ out_f16,
    int8_t* __restrict__ out_q, rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset,
    int32_t hidden_size, float eps) {
  rf::rms_norm<true>(blockIdx.x, rf::WholeRows{delta}, {residual, residual, post_weight, scale},
                     {weight, {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}}, {},
                     hidden_size, eps, [=] {
                       rf::wait_for_previous(delta, residual);
                       rf::let_next_begin_if_few_rows();
                     });
}

// The same where delta is what rf_gemm_sum makes of `partial`, f32 [splits, rows, hidden_size], and
// the bias. Grid: (rows).
extern "C" __global__ __launch_bounds__(rf::kMostSplitsThreads) void rf_add_splits_rms_norm(
    const float* __restrict__ partial, const float* __restrict__ bias, float* __restrict__ residual,
    const float* __restrict__ post_weight, const float* __restrict__ scale,
    const float* RF_EARLY weight, float* __restrict__ out_f32, rf::half* __restrict__ out_f16,
    int8_t* __restrict__ out_q, rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset,
    int32_t splits, int32_t hidden_size, float eps) {
  const int64_t stride = static_cast<int64_t>(RF_GRID_SIZE(x)) * hidden_size;
  rf::rms_norm<true>(blockIdx.x, rf::RowsInSplits{partial, bias, splits, stride},
                     {residual, residual, post_weight, scale},
                     {weight, {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}}, {},
                     hidden_size, eps, [=] {
                       rf::wait_for_previous(partial, residual);
                       rf::let_next_begin_if_few_rows();
                     });
}

// x itself, in the forms that a norm has. Grid: (rows).
extern "C" __global__ __launch_bounds__(1024) void rf_give_rows(
    const float* __restrict__ x, float* __restrict__ out_f32, rf::half* __restrict__ out_f16,
    int8_t* __restrict__ out_q, rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset,
    int32_t hidden_size) {
  rf::rms_norm<false, false>(blockIdx.x, rf::WholeRows{x}, {},
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
  rf::rms_norm<true, false>(blockIdx.x, rf::WholeRows{delta}, {residual, residual, post_weight},
                            {nullptr, {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}}, {},
                            hidden_size, eps, [=] {
                              rf::wait_for_previous(delta, residual);
                              rf::let_next_begin_if_few_rows();
                            });
}

// x: f32 [rows, hidden_size], rows stride apart (a multiple of 4), in place. other: more of them,
// of another size, or null. Grid: (rows), or (rows, 2) with others.
extern "C" __global__ __launch_bounds__(1024) void rf_rms_norm_columns(
    float* x, const float* __restrict__ weight, int64_t stride, int32_t hidden_size, float* other,
    const float* __restrict__ other_weight, int64_t other_stride, int32_t other_size, float eps) {
  __shared__ float squares[rf::kMostSquares];
  if (blockIdx.y != 0) {
    x = other;
    weight = other_weight;
    stride = other_stride;
    hidden_size = other_size;
  }
  float* row = x + static_cast<int64_t>(blockIdx.x) * stride;
  rf::NormRow values, weights;
  rf::load_row(weight, hidden_size, weights);
  rf::load_row(row, hidden_size, values);
  const float factor = rf::norm_factor(values, hidden_size, eps, squares);
#pragma unroll
  for (int step = 0; step < rf::kNormSteps; ++step) {
    const int i = rf::norm_index(step);
    if (i < hidden_size) rf::store16(row + i, values[step] * (factor * weights[step]));
  }
}

// x: halves [rows, hidden_size], rows stride apart (a multiple of 4), in place. Grid: (rows).
extern "C" __global__ __launch_bounds__(1024) void rf_rms_norm_half(
    rf::half* __restrict__ x, const float* __restrict__ weight, int64_t stride, int32_t hidden_size,
    float eps) {
  using Four = rf::Vec<rf::half, 4>;
  __shared__ float squares[rf::kMostSquares];
  rf::half* row = x + static_cast<int64_t>(blockIdx.x) * stride;
  rf::NormRow values, weights;
  rf::load_row(weight, hidden_size, weights);
#pragma unroll
  for (int step = 0; step < rf::kNormSteps; ++step) {
    const int i = rf::norm_index(step);
    values[step] = 0.0f;
    if (i >= hidden_size) continue;
    const Four four = *reinterpret_cast<const Four*>(row + i);
    for (int k = 0; k < 4; ++k) values[step][k] = rf::to_float(four[k]);
  }
  const float factor = rf::norm_factor(values, hidden_size, eps, squares);
#pragma unroll
  for (int step = 0; step < rf::kNormSteps; ++step) {
    const int i = rf::norm_index(step);
    if (i >= hidden_size) continue;
    Four four;
    for (int k = 0; k < 4; ++k) four[k] = rf::to_half(values[step][k] * factor * weights[step][k]);
    *reinterpret_cast<Four*>(row + i) = four;
  }
}
