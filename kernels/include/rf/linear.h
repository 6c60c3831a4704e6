// What the kernels of linear layers share: the shape of the result and where it goes.
#pragma once

#include "rf/activations/act.h"
#include "rf/activations/gate.h"
#include "rf/weights/weights.h"

namespace rf {

// Keeps the compiler from moving loads over this point. It would move those for the next step of a
// loop into that step, where it is too late to begin them.
__device__ __forceinline__ void issue_loads() { asm volatile("" ::: "memory"); }

// Outputs of a layer and the stored rows of its matrix (weights.h).
struct Outputs {
  int out_features;
  int activation;  // kNotGated, or of gate and up rows that make one column together

  __device__ __forceinline__ int stored_rows() const {
    return activation == kNotGated ? (out_features + kRowAlign - 1) / kRowAlign * kRowAlign
                                   : (out_features + kGateRows - 1) / kGateRows * kRowAlign;
  }
  // Column that stored row `row` belongs to.
  __device__ __forceinline__ int column(int row) const {
    return activation == kNotGated ? row : row / kRowAlign * kGateRows + row % kGateRows;
  }
  // Stored row of the gate of `column`; its up row is kGateRows further.
  static __device__ __forceinline__ int gate_row(int column) {
    return column / kGateRows * kRowAlign + column % kGateRows;
  }
};

// Pointers of a result [rows, out_features]; null where a launch does without.
struct Result {
  const float* bias;  // [out_features]
  float* out;
  half* out_half;  // clamped to the range of finite halves

  __device__ __forceinline__ void store(int64_t row, int column, int out_features,
                                        float value) const {
    const int64_t index = row * out_features + column;
    if (bias) value += bias[column];
    if (out) out[index] = value;
    if (out_half) out_half[index] = act_half(value);
  }

  // Columns `column` (a multiple of 4) to column + 3, as far as there are so many.
  __device__ __forceinline__ void store_four(int64_t row, int column, int out_features,
                                             Vec<float, 4> values) const {
    if (out_features % 4 != 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + i < out_features) store(row, column + i, out_features, values[i]);
      }
      return;
    }
    const int64_t index = row * out_features + column;
    if (bias) values += load16(bias + column);
    if (out) store16(out + index, values);
    if (!out_half) return;
    Vec<half, 4> halves;
    for (int i = 0; i < 4; ++i) halves[i] = act_half(values[i]);
    *reinterpret_cast<Vec<half, 4>*>(out_half + index) = halves;
  }
};

}  // namespace rf
