// The sum of what experts and a network beside them make of a row, each normed if need be, on its
// way into the residual.
#pragma once

#include "rf/norms/rms_norm.h"

namespace rf {

// A row that is added, or its norm.
struct Addend {
  const float* x;
  const float* weight;  // of the norm; null: none
};

// first + shares[row] * second; without shares, first + second.
struct SumOfTwo {
  Addend first;
  Addend second;
  const float* shares;  // f32 [rows]

  // Adds the sum of row `row` to the residual, or its norm if there is a post_weight, and norms
  // what comes of that times the scale, as rms_norm does.
  __device__ __forceinline__ void add_and_norm(int64_t row, float* residual,
                                               const float* post_weight, const float* scale,
                                               const NormOutput& to, int hidden_size,
                                               float eps) const {
    __shared__ float partial[kMostSquares];
    const int64_t at = row * hidden_size;
    // Weights are asked for before the reduction, which hides their latency; one norm after the
    // other, for the sake of registers.
    NormRow values, others, weights;
    load_row(first.x + at, hidden_size, values);
    load_row(second.x + at, hidden_size, others);
    if (first.weight) {
      load_row(first.weight, hidden_size, weights);
      multiply(values, norm_factor(values, hidden_size, eps, partial), weights);
    }
    if (second.weight) {
      load_row(second.weight, hidden_size, weights);
      multiply(others, norm_factor(others, hidden_size, eps, partial), weights);
    }
    const float share = shares ? shares[row] : 1.0f;
#pragma unroll
    for (int step = 0; step < kNormSteps; ++step) values[step] += share * others[step];
    float factor = 1.0f;
    if (post_weight) {
      load_row(post_weight, hidden_size, weights);
      factor = norm_factor(values, hidden_size, eps, partial);
    }
    const float multiplier = scale ? *scale : 1.0f;
#pragma unroll
    for (int step = 0; step < kNormSteps; ++step) {
      const int i = norm_index(step);
      if (i >= hidden_size) continue;
      const Vec<float, 4> old = load16(residual + at + i);
      values[step] =
          post_weight ? added(values[step], factor, weights[step], old) : values[step] + old;
      values[step] *= multiplier;
    }
#pragma unroll
    for (int step = 0; step < kNormSteps; ++step) {
      const int i = norm_index(step);
      if (i < hidden_size) store16(residual + at + i, values[step]);
    }
    load_row(to.weight, hidden_size, weights);
    const float own_factor = norm_factor(values, hidden_size, eps, partial);
#pragma unroll
    for (int step = 0; step < kNormSteps; ++step) {
      const int i = norm_index(step);
      to.out.store(at + i, weighted(values[step], weights[step]), i < hidden_size, own_factor);
    }
  }

 private:
  static __device__ __forceinline__ void multiply(NormRow& values, float factor,
                                                  const NormRow& weights) {
#pragma unroll
    for (int step = 0; step < kNormSteps; ++step) values[step] *= factor * weights[step];
  }
};

}  // namespace rf
