// Root mean square layer norm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight.
// Gemma's weights need nothing special: GGUF files hold them with the 1 already added.
#include "rf/act.h"
#include "rf/wave.h"

namespace rf {

// A row lies in the registers of its block: four values a thread and step.
inline constexpr int kNormSteps = 4;

// Where the normalised rows go. Any of them may be null, which leaves that form out.
struct NormOutput {
  float* f32;         // [rows, dim]
  half* f16;          // [rows, dim]
  int8_t* q;          // [rows, dim], see act.h; q_scale is given with it
  ActScale* q_scale;  // [rows, dim / 32]
};

// One block a row; dim is a multiple of 4 (of 32 for int8) and at most 16 * blockDim.x.
template <bool kAdd>
__device__ __forceinline__ void rms_norm(const float* x, float* residual, const float* weight,
                                         const NormOutput& out, int dim, float eps) {
  __shared__ float partial[kMaxWaves];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * dim;

  // The weights are asked for before the reduction, which hides their latency.
  Vec<float, 4> values[kNormSteps], weights[kNormSteps];
  float squares = 0.0f;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = static_cast<int>(step * blockDim.x + threadIdx.x) * 4;
    values[step] = 0.0f;
    weights[step] = 0.0f;
    if (i >= dim) continue;
    weights[step] = load16(weight + i);
    values[step] = load16(x + row + i);
    if constexpr (kAdd) {
      values[step] += load16(residual + row + i);
      store16(residual + row + i, values[step]);
    }
    const Vec<float, 4> square = values[step] * values[step];
    squares += (square[0] + square[1]) + (square[2] + square[3]);
  }
  const float factor = rsqrt(block_sum(squares, partial) / static_cast<float>(dim) + eps);

#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = static_cast<int>(step * blockDim.x + threadIdx.x) * 4;
    const bool inside = i < dim;
    const Vec<float, 4> y = values[step] * factor * weights[step];
    if (out.f32 && inside) store16(out.f32 + row + i, y);
    if (out.f16 && inside) {
      Vec<half, 4> halves;
      for (int k = 0; k < 4; ++k) halves[k] = act_half(y[k]);
      *reinterpret_cast<Vec<half, 4>*>(out.f16 + row + i) = halves;
    }
    if (out.q) {
      const int64_t block = (row + i) / kActBlock;
      act_store(y, inside, out.q + block * kActBlock, out.q_scale + block);
    }
  }
}

}  // namespace rf

// Grid: (rows). x and weight f32.
extern "C" __global__ __launch_bounds__(1024) void rf_rms_norm(
    const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out_f32,
    rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,
    rf::ActScale* __restrict__ out_q_scale, int32_t dim, float eps) {
  rf::rms_norm<false>(x, nullptr, weight, {out_f32, out_f16, out_q, out_q_scale}, dim, eps);
}

// residual += delta, then the norm of residual. Grid: (rows).
extern "C" __global__ __launch_bounds__(1024) void rf_add_rms_norm(
    const float* __restrict__ delta, float* __restrict__ residual, const float* __restrict__ weight,
    float* __restrict__ out_f32, rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,
    rf::ActScale* __restrict__ out_q_scale, int32_t dim, float eps) {
  rf::rms_norm<true>(delta, residual, weight, {out_f32, out_f16, out_q, out_q_scale}, dim, eps);
}
