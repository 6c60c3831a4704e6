// The result of a network beside experts is added to theirs.
#include "rf/norms/sum_of_two.h"

// shared[t] = mixed[t] + weight * shared[t] for f32 rows of `features` elements (a multiple of 4).
// The weight is sigmoid(x[t] @ router), or 1 where the router, f32 [features], is null.
// Grid: rows, block 256.
extern "C" __global__ __launch_bounds__(256) void rf_add_shared(const float* __restrict__ mixed,
                                                                float* __restrict__ shared,
                                                                const float* __restrict__ x,
                                                                const float* __restrict__ router,
                                                                int features) {
  __shared__ float scratch[rf::kMaxWaves];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * features;
  float weight = 1.0f;
  if (router) {
    float sum = 0.0f;
    for (int i = threadIdx.x * 4; i < features; i += blockDim.x * 4) {
      const auto values = rf::load16(x + row + i);
      const auto factors = rf::load16(router + i);
      for (int k = 0; k < 4; ++k) sum = rf::fma(values[k], factors[k], sum);
    }
    weight = 1.0f / (1.0f + rf::exp(-rf::block_sum(sum, scratch)));
  }
  for (int i = threadIdx.x * 4; i < features; i += blockDim.x * 4) {
    rf::store16(shared + row + i,
                rf::load16(mixed + row + i) + weight * rf::load16(shared + row + i));
  }
}

// residual = (residual + sum) * scale, then the norm of residual, as rf_add_rms_norm. The sum is
// that of rf_add_shared; where mixed_weight or shared_weight, f32 [features], is not null, of the
// norm of `mixed` or `shared` in its place. post_weight: of a norm of the sum, null = none.
// Grid: (rows), block as for rf_add_rms_norm, at most 512.
extern "C" __global__ __launch_bounds__(512) void rf_add_shared_rms_norm(
    const float* __restrict__ mixed, const float* __restrict__ mixed_weight,
    const float* __restrict__ shared, const float* __restrict__ shared_weight, const float* x,
    const float* __restrict__ router, float* __restrict__ residual,
    const float* __restrict__ post_weight, const float* __restrict__ scale,
    const float* __restrict__ weight, float* out_f32, rf::half* __restrict__ out_f16,
    int8_t* __restrict__ out_q, rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset,
    int32_t hidden_size, float eps) {
  rf::wait_for_previous(mixed, shared, x, residual);
  rf::let_next_begin_if_few_rows();
  const rf::SumOfTwo sum{{mixed, mixed_weight}, {shared, shared_weight}, x, router};
  sum.add_and_norm(blockIdx.x, residual, post_weight, scale,
                   {weight, {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}}, hidden_size,
                   eps);
}
