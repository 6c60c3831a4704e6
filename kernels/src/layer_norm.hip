// Layer norm (Ba et al. 2016): (x - mean) / sqrt(variance + eps) * weight + bias, if there is one.
#include "rf/norm.h"

namespace rf {

struct LayerNormInput {
  const float* x;         // [rows, dim]
  const float* residual;  // [rows, dim], added to x first; null = nothing
  const float* weight;    // [dim]
  const float* bias;      // [dim]; null = zeros
  int dim;
  float eps;
};

// One block a row; dim is a multiple of 4 and at most 16 * blockDim.x. The row is
// read once: the variance is computed from what lies in registers, around the mean, as squares of
// values far from zero would lose it. The result, or the sum with the residual where out_sum is not
// null, may lie where x or the residual lies.
__device__ __forceinline__ void layer_norm(const LayerNormInput& in, float* out_sum,
                                           const ActOutput& out) {
  __shared__ float partial[kMaxWaves];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * in.dim;

  // Weights and biases are asked for before a reduction each, which hides their latency.
  NormRow values, weights, biases;
  float sum = 0.0f;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    values[step] = 0.0f;
    weights[step] = 0.0f;
    if (i >= in.dim) continue;
    values[step] = load16(in.x + row + i);
    if (in.residual) values[step] += load16(in.residual + row + i);
    if (out_sum) store16(out_sum + row + i, values[step]);
    weights[step] = load16(in.weight + i);
    sum += sum_four(values[step]);
  }
  const float mean = block_sum(sum, partial) / static_cast<float>(in.dim);

  float squares = 0.0f;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    biases[step] = 0.0f;
    if (i >= in.dim) continue;
    if (in.bias) biases[step] = load16(in.bias + i);
    values[step] -= mean;
    squares += sum_four(values[step] * values[step]);
  }
  const float variance = block_sum(squares, partial) / static_cast<float>(in.dim);
  const float factor = rsqrt(variance + in.eps);

#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    out.store(row + i, values[step] * factor * weights[step] + biases[step], i < in.dim);
  }
}

}  // namespace rf

// Grid: (rows). The results that are not null: f32 and halves.
extern "C" __global__ __launch_bounds__(1024) void rf_layer_norm(
    const float* x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* out_f32, rf::half* __restrict__ out_f16, int32_t dim, float eps) {
  rf::layer_norm({x, nullptr, weight, bias, dim, eps}, nullptr,
                 {out_f32, out_f16, nullptr, nullptr, 0});
}

// The norm of residual + delta, and that sum if out_sum is not null. Grid: (rows).
extern "C" __global__ __launch_bounds__(1024) void rf_add_layer_norm(
    const float* __restrict__ delta, const float* residual, const float* __restrict__ weight,
    const float* __restrict__ bias, float* out_sum, float* out_f32, rf::half* __restrict__ out_f16,
    int32_t dim, float eps) {
  rf::layer_norm({delta, residual, weight, bias, dim, eps}, out_sum,
                 {out_f32, out_f16, nullptr, nullptr, 0});
}
