// Adds up the pieces of a GEMM whose K was split over blocks (gemm.hip).
#include "rf/linear.h"

namespace {

inline constexpr int kThreads = 256;

}  // namespace

// partial: f32 [splits, gridDim.y, stored rows]. The result and the other arguments are those of
// rf_gemm_*. Always in the same order, so the same input gives the same bits.
// Grid: (ceil(out_features / 256), rows), block 256.
extern "C" __global__ __launch_bounds__(kThreads) void rf_gemm_sum(
    const float* __restrict__ partial, const float* __restrict__ bias, float* out,
    rf::half* out_half, int splits, int out_features, int activation) {
  const rf::Outputs outputs{out_features, activation};
  const int column = blockIdx.x * kThreads + threadIdx.x;
  if (column >= out_features) return;
  const int64_t stored_rows = outputs.stored_rows();
  const float* row = partial + blockIdx.y * stored_rows;
  const int64_t split_stride = gridDim.y * stored_rows;
  const auto total = [&](int stored) {
    float sum = 0.0f;
    for (int split = 0; split < splits; ++split) sum += row[split * split_stride + stored];
    return sum;
  };
  float value;
  if (activation == rf::kNotGated) {
    value = total(column);
  } else {
    const int gate = outputs.gate_row(column);
    value = rf::gated(total(gate), total(gate + rf::kGateRows), activation);
  }
  rf::Result{bias, out, out_half}.store(blockIdx.y, column, out_features, value);
}
