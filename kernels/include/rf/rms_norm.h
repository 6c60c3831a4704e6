// Root mean square layer norm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight.
// Gemma's weights need nothing special: GGUF files hold them with the 1 already added.
#pragma once

#include "rf/norm.h"

namespace rf {

// The norm of row `row`, to `out`, by one block; hidden_size is a multiple of 4 (of 32 for int8)
// and at most 16 * blockDim.x. kAdd: of residual + x, which goes to `total`, too, and that may be
// the residual's place; the sum is multiplied with `scale`, if that is not null. Without kNorm, the
// row goes to `out` as it is.
// Calls `begun` when the weights are on their way, where a kernel may be launched early.
template <bool kAdd, bool kNorm = true, class Begun>
__device__ __forceinline__ void rms_norm(int64_t row, const float* x, const float* residual,
                                         float* total, const float* weight, const float* scale,
                                         const ActOutput& out, int hidden_size, float eps,
                                         const Begun& begun) {
  __shared__ float partial[kMaxWaves];
  const int64_t first = row * hidden_size;

  // The weights are asked for before the reduction, which hides their latency, and everything
  // before anything is stored, as that might be the same place.
  NormRow values, weights;
  const float multiplier = kAdd && scale ? *scale : 1.0f;
  const auto load_weights = [&] {
#pragma unroll
    for (int step = 0; step < kNormSteps; ++step) {
      const int i = norm_index(step);
      weights[step] = i < hidden_size ? load16(weight + i) : Vec<float, 4>{};
    }
  };
  if constexpr (kNorm && kBeginsEarly) load_weights();
  begun();
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    values[step] = 0.0f;
    if (i >= hidden_size) continue;
    values[step] = load16(x + first + i);
    if constexpr (kAdd) values[step] = (values[step] + load16(residual + first + i)) * multiplier;
  }
  if constexpr (kNorm && !kBeginsEarly) load_weights();
  float squares = 0.0f;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    if (i >= hidden_size) continue;
    if constexpr (kAdd) store16(total + first + i, values[step]);
    squares += sum_four(values[step] * values[step]);
  }
  float factor = 1.0f;
  if constexpr (kNorm) {
    factor = rsqrt(block_sum(squares, partial) / static_cast<float>(hidden_size) + eps);
  }

#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    if constexpr (kNorm) values[step] = values[step] * factor * weights[step];
    out.store(first + i, values[step], i < hidden_size);
  }
}

}  // namespace rf
