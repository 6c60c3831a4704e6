// GELU by its definition, x * Phi(x) with the normal distribution function (Hendrycks and Gimpel
// 2016): the activation of BERT and ModernBERT.
#pragma once

#include "rf/platform.h"

namespace rf {

// 1 - erf(x) for x >= 0, to 2e-7 (Abramowitz and Stegun 1964, formula 7.1.26). The term with the
// exponential is the result itself, so that small ones keep their relative precision, nearly.
__device__ __forceinline__ float erfc_positive(float x) {
  const float t = rcp(1.0f + 0.3275911f * x);
  float sum = 1.061405429f;
  sum = fma(sum, t, -1.453152027f);
  sum = fma(sum, t, 1.421413741f);
  sum = fma(sum, t, -0.284496736f);
  sum = fma(sum, t, 0.254829592f);
  return sum * t * exp(-x * x);
}

__device__ __forceinline__ float gelu(float x) {
  constexpr float kSqrtHalf = 0.70710678118654752440f;
  const float tail = 0.5f * abs(x) * erfc_positive(abs(x) * kSqrtHalf);
  return x > 0.0f ? x - tail : -tail;
}

}  // namespace rf
