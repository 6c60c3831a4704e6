// The norm of a sum of rows by one thread block, where it is the last to finish a matrix product:
// it makes the bits that rf_add_rms_norm makes, or rf_rms_norm before it.
#pragma once

#include "rf/last_block.h"
#include "rf/rms_norm.h"

namespace rf {

struct NormTail {
  uint32_t* arrived;         // see last_block.h
  float* residual;           // [rows, hidden_size]; becomes the sum
  const float* post_weight;  // [hidden_size], of a norm of what is added; null: there is none
  const float* scale;        // of the sum; null: 1
  const float* weight;       // [hidden_size]; null: the sum is not normed
  ActOutput out;
  int hidden_size;
  int threads;  // that a norm has for a row
  float eps;

  // All threads of all blocks call this, once they have stored what is theirs of `delta`.
  template <int kMostRows>
  __device__ __forceinline__ void finish(const float* delta, int rows) const {
    if (!is_last_block(arrived, gridDim.x)) return;
    __shared__ float post_sums[kMostRows][kMaxWaves], sums[kMostRows][kMaxWaves];
    if (post_weight) {
      for_parts(rows, [&](int row, int wave) {
        float squares = 0.0f;
        for (int step = 0; step < kNormSteps; ++step) {
          const int i = index(step, wave);
          if (i >= hidden_size) continue;
          const Vec<float, 4> values = load16(delta + at(row, i));
          squares += sum_four(values * values);
        }
        store_sum(squares, post_sums[row][wave]);
      });
      __syncthreads();
    }
    const float multiplier = scale ? *scale : 1.0f;
    for_parts(rows, [&](int row, int wave) {
      const float post_factor = post_weight ? factor(post_sums[row]) : 1.0f;
      float squares = 0.0f;
#pragma unroll
      for (int step = 0; step < kNormSteps; ++step) {
        const int i = index(step, wave);
        if (i >= hidden_size) continue;
        Vec<float, 4> values = load16(delta + at(row, i));
        const Vec<float, 4> old = load16(residual + at(row, i));
        if (post_weight) {
          values = added(values, post_factor, load16(post_weight + i), old);
        } else {
          values += old;
        }
        values *= multiplier;
        store16(residual + at(row, i), values);
        squares += sum_four(values * values);
      }
      store_sum(squares, sums[row][wave]);
    });
    __syncthreads();
    for_parts(rows, [&](int row, int wave) {
      const float own_factor = factor(sums[row]);
#pragma unroll
      for (int step = 0; step < kNormSteps; ++step) {
        const int i = index(step, wave);
        const bool inside = i < hidden_size;
        Vec<float, 4> values{}, weights{};
        if (inside) {
          values = load16(residual + at(row, i));
          if (weight) weights = load16(weight + i);
        }
        if (weight) values = values * own_factor * weights;
        out.store(at(row, i), values, inside);
      }
    });
  }

 private:
  // Waves take the parts of rows that those of a norm take, one after the other if they are too
  // few: so sums are added in the same order.
  template <class Body>
  __device__ __forceinline__ void for_parts(int rows, const Body& body) const {
    const int waves = threads / kWave;
    for (int part = uniform(wave_id()); part < rows * waves;
         part += static_cast<int>(blockDim.x) / kWave) {
      body(part / waves, part % waves);
    }
  }

  // As norm_index, of a lane of such a wave.
  __device__ __forceinline__ int index(int step, int wave) const {
    return (step * threads + wave * kWave + lane_id()) * 4;
  }
  __device__ __forceinline__ int64_t at(int row, int i) const {
    return static_cast<int64_t>(row) * hidden_size + i;
  }

  static __device__ __forceinline__ void store_sum(float squares, float& to) {
    const float sum = wave_sum(squares);
    if (lane_id() == 0) to = sum;
  }
  __device__ __forceinline__ float factor(const float (&of_waves)[kMaxWaves]) const {
    float sum = of_waves[0];
    for (int wave = 1; wave < threads / kWave; ++wave) sum += of_waves[wave];
    return rsqrt(sum / static_cast<float>(hidden_size) + eps);
  }
};

}  // namespace rf
