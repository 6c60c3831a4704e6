// Layer norm (Ba et al. 2016): (x - mean) / sqrt(variance + eps) * weight + bias, if there is one.
#include "rf/norms/norm.h"

namespace rf {

struct LayerNormInput {
  const float* x;         // [rows, hidden_size]
  const float* residual;  // [rows, hidden_size], added to x first; null = nothing
};

struct LayerNormRule {
  const float* weight;  // [hidden_size]
  const float* bias;    // [hidden_size]; null = zeros
  int hidden_size;
  float eps;
};

// Normalises the row that the block holds. The variance is computed from what lies in registers,
// around the mean, as squares of values far from zero would lose it. The weights are asked for
// before the last reduction, which hides their latency; registers for the biases, too, some GPUs
// lack.
__device__ __forceinline__ void normalise(NormRow& values, const LayerNormRule& rule) {
  __shared__ float partial[kMaxWaves];
  NormRow weights;
  float sum = 0.0f;
#pragma unroll
  for (const auto& four : values) sum += sum_four(four);
  const float mean = block_sum(sum, partial) / static_cast<float>(rule.hidden_size);

  float squares = 0.0f;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    weights[step] = 0.0f;
    if (i >= rule.hidden_size) continue;
    weights[step] = load16(rule.weight + i);
    values[step] -= mean;
    squares += sum_four(values[step] * values[step]);
  }
  const float variance = block_sum(squares, partial) / static_cast<float>(rule.hidden_size);
  const float factor = rsqrt(variance + rule.eps);
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    values[step] *= factor * weights[step];
    if (rule.bias && norm_index(step) < rule.hidden_size) {
      values[step] += load16(rule.bias + norm_index(step));
    }
  }
}

// One block a row; hidden_size is a multiple of 4 and at most 16 * blockDim.x. The row is read
// once. The result, or the sum with the residual where out_sum is not null, may lie where x or the
// residual lies.
__device__ __forceinline__ void layer_norm(const LayerNormInput& in, const LayerNormRule& rule,
                                           float* out_sum, const ActOutput& out) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * rule.hidden_size;
  NormRow values;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    values[step] = 0.0f;
    if (i >= rule.hidden_size) continue;
    values[step] = load16(in.x + row + i);
    if (in.residual) values[step] += load16(in.residual + row + i);
  }
#pragma unroll
  for (int step = 0; step < kNormSteps && out_sum; ++step) {
    const int i = norm_index(step);
    if (i < rule.hidden_size) store16(out_sum + row + i, values[step]);
  }
  normalise(values, rule);
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    out.store(row + i, values[step], i < rule.hidden_size);
  }
}

}  // namespace rf

// Grid: (rows). The results that are not null: f32 and halves.
extern "C" __global__ __launch_bounds__(1024) void rf_layer_norm(
    const float* x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* out_f32, rf::half* __restrict__ out_f16, int32_t hidden_size, float eps) {
  rf::layer_norm({x, nullptr}, {weight, bias, hidden_size, eps}, nullptr,
                 {out_f32, out_f16, nullptr, nullptr, 0});
}

// The norm of residual + delta, and that sum if out_sum is not null. Grid: (rows).
extern "C" __global__ __launch_bounds__(1024) void rf_add_layer_norm(
    const float* delta, const float* residual, const float* __restrict__ weight,
    const float* __restrict__ bias, float* out_sum, float* out_f32, rf::half* __restrict__ out_f16,
    int32_t hidden_size, float eps) {
  rf::layer_norm({delta, residual}, {weight, bias, hidden_size, eps}, out_sum,
                 {out_f32, out_f16, nullptr, nullptr, 0});
}

// x: halves [rows, hidden_size], rows stride apart (a multiple of 4), in place. Grid: (rows).
extern "C" __global__ __launch_bounds__(1024) void rf_layer_norm_half(
    rf::half* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    int64_t stride, int32_t hidden_size, float eps) {
  using Four = rf::Vec<rf::half, 4>;
  rf::half* row = x + static_cast<int64_t>(blockIdx.x) * stride;
  rf::NormRow values;
#pragma unroll
  for (int step = 0; step < rf::kNormSteps; ++step) {
    const int i = rf::norm_index(step);
    values[step] = 0.0f;
    if (i >= hidden_size) continue;
    const Four four = *reinterpret_cast<const Four*>(row + i);
    for (int k = 0; k < 4; ++k) values[step][k] = rf::to_float(four[k]);
  }
  rf::normalise(values, {weight, bias, hidden_size, eps});
#pragma unroll
  for (int step = 0; step < rf::kNormSteps; ++step) {
    const int i = rf::norm_index(step);
    if (i >= hidden_size) continue;
    Four four;
    for (int k = 0; k < 4; ++k) four[k] = rf::to_half(values[step][k]);
    *reinterpret_cast<Four*>(row + i) = four;
  }
}
