// The norm of a sum of rows by one thread block, where it is the last to finish a matrix product:
// it makes the bits that rf_add_rms_norm makes, or rf_rms_norm before it.
#pragma once

#include "rf/last_block.h"
#include "rf/norms/rms_norm.h"

namespace rf {

struct NormTail {
  uint32_t* arrived;         // see last_block.h
  float* residual;           // [rows, hidden_size]; becomes the sum
  const float* post_weight;  // [hidden_size], of a norm of what is added; null: there is none
  const float* scale;        // of the sum; null: 1
  const float* weight;       // [hidden_size]; null: the sum is not normed
  ActOutput out;
  float* squares;  // [rows, hidden_size / kActBlock, rounded up], scratch
  int hidden_size;
  float eps;

  // All threads of all blocks call this, once they have stored what is theirs of `delta`.
  template <int kMostRows>
  __device__ __forceinline__ void finish(const float* delta, int rows) const {
    if (!is_last_block(arrived, gridDim.x)) return;
    __shared__ float post_factors[kMostRows];
    const int waves = static_cast<int>(blockDim.x) / kWave;
    if (post_weight) {
      for_fours(rows, [&](int row, int i, bool inside) {
        store_squares(inside ? load16(delta + at(row, i)) : Vec<float, 4>{}, row, i);
      });
      __syncthreads();
      for (int row = wave_id(); row < rows; row += waves) {
        const float found = factor(row);
        if (lane_id() == 0) post_factors[row] = found;
      }
      __syncthreads();
    }
    const float multiplier = scale ? *scale : 1.0f;
    for_fours(rows, [&](int row, int i, bool inside) {
      Vec<float, 4> values{};
      if (inside) {
        values = load16(delta + at(row, i));
        const Vec<float, 4> old = load16(residual + at(row, i));
        if (post_weight) {
          values = added(values, post_factors[row], load16(post_weight + i), old);
        } else {
          values += old;
        }
        values *= multiplier;
        store16(residual + at(row, i), values);
      }
      store_squares(values, row, i);
    });
    __syncthreads();
    float own_factor = 1.0f;
    int last_row = -1;
    for_fours(rows, [&](int row, int i, bool inside) {
      if (weight && row != last_row) own_factor = factor(row);
      last_row = row;
      Vec<float, 4> values{};
      if (inside) {
        values = load16(residual + at(row, i));
        if (weight) values = weighted(values, load16(weight + i));
      }
      out.store(at(row, i), values, inside, own_factor);
    });
  }

 private:
  // Has each thread take four columns of a row at a time; whole waves stay together.
  template <class Body>
  __device__ __forceinline__ void for_fours(int rows, const Body& body) const {
    for (int row = 0; row < rows; ++row) {
      for (int first = 0; first < hidden_size; first += static_cast<int>(blockDim.x) * 4) {
        const int i = first + static_cast<int>(threadIdx.x) * 4;
        body(row, i, i < hidden_size);
      }
    }
  }

  __device__ __forceinline__ int64_t at(int row, int i) const {
    return static_cast<int64_t>(row) * hidden_size + i;
  }

  __device__ __forceinline__ int blocks() const {
    return (hidden_size + kActBlock - 1) / kActBlock;
  }
  __device__ __forceinline__ void store_squares(Vec<float, 4> values, int row, int i) const {
    const float sum = squares_of(values);
    if (lane_id() % kActLanes == 0 && i < hidden_size)
      squares[row * blocks() + i / kActBlock] = sum;
  }
  __device__ __forceinline__ float factor(int row) const {
    return factor_of(squares + row * blocks(), blocks(), hidden_size, eps);
  }
};

}  // namespace rf
