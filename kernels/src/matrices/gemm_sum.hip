// Adds up the pieces of a GEMM whose K was split over blocks (gemm.hip).
#include "rf/linear.h"

namespace {

inline constexpr int kThreads = 256;

}  // namespace

// partial: f32 [splits, gridDim.y, stored rows]. The result and the other arguments are those of
// rf_gemm_*. Behind the rows of that matrix may lie those of a second one, which is not gated and
// has as many stored rows as features (rf_gemm_beside_*). Always in the same order, so the same
// input gives the same bits. Grid: (ceil((out_features + second_features) / 256), rows), block 256.
extern "C" __global__ __launch_bounds__(kThreads) void rf_gemm_sum(
    const float* __restrict__ partial, const float* __restrict__ bias, float* out,
    rf::half* out_half, const float* __restrict__ second_bias, float* second_out,
    rf::half* second_out_half, int splits, int out_features, int second_features, int activation) {
  const rf::Outputs outputs{out_features, activation};
  const int column = blockIdx.x * kThreads + threadIdx.x;
  if (column >= out_features + second_features) return;
  const int of_first = outputs.stored_rows();
  const int64_t stored_rows = of_first + second_features;
  const float* row = partial + blockIdx.y * stored_rows;
  const int64_t split_stride = gridDim.y * stored_rows;
  const auto total = [&](int stored) {
    float sum = 0.0f;
    for (int split = 0; split < splits; ++split) sum += row[split * split_stride + stored];
    return sum;
  };
  if (column >= out_features) {
    const int own = column - out_features;
    rf::Result{second_bias, second_out, second_out_half}.store(blockIdx.y, own, second_features,
                                                               total(of_first + own));
    return;
  }
  float value;
  if (activation == rf::kNotGated) {
    value = total(column);
  } else {
    const int gate = outputs.gate_row(column);
    value = rf::gated(total(gate), total(gate + rf::kGateRows), activation);
  }
  rf::Result{bias, out, out_half}.store(blockIdx.y, column, out_features, value);
}
