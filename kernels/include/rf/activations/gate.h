// What a feed-forward applies to its gate, or to its only product.
#pragma once

#include "rf/activations/gelu.h"

namespace rf {

// As a kernel argument: the layer is not gated, or its activation.
inline constexpr int kNotGated = 0;
inline constexpr int kSilu = 1;
inline constexpr int kGeluTanh = 2;
inline constexpr int kGelu = 3;
inline constexpr int kClampedSwiglu = 4;
inline constexpr int kSquaredRelu = 5;  // of a layer that is not gated

// So et al. 2021.
__device__ __forceinline__ float squared_relu(float x) {
  const float positive = max(x, 0.0f);
  return positive * positive;
}

// activation(gate) * up, or what gpt-oss has in its place.
__device__ __forceinline__ float gated(float gate, float up, int activation) {
  if (activation == kSilu) return gate * rcp(1.0f + exp(-gate)) * up;
  if (activation == kGelu) return gelu(gate) * up;
  if (activation == kClampedSwiglu) {
    constexpr float kLimit = 7.0f;
    gate = min(gate, kLimit);
    up = min(max(up, -kLimit), kLimit);
    return gate * rcp(1.0f + exp(-1.702f * gate)) * (up + 1.0f);
  }
  constexpr float kSqrt2OverPi = 0.797884560802865355880f;
  const float inner = kSqrt2OverPi * (gate + 0.044715f * gate * gate * gate);
  return 0.5f * gate * (1.0f + tanh(inner)) * up;
}

}  // namespace rf
