// Results of attention are multiplied with the sigmoids of their gates.
#include "rf/activations/act_output.h"
#include "rf/recurrent/recurrent.h"

// x = x * sigmoid(gate) for f32 or f16 rows of `features` elements (a multiple of 4; of 32 for
// int8), in place. Of f32 there may be an int8 form besides, which is written only. gate: f32, rows
// `stride` apart.
// Grid: (ceil(features / 1024), rows), block 256.
extern "C" __global__ __launch_bounds__(256) void rf_sigmoid_gate(
    const float* __restrict__ gate, float* x_f32, rf::half* x_f16, int8_t* __restrict__ x_q,
    rf::ActScale* __restrict__ x_q_scale, int32_t x_q_lo_offset, int64_t stride, int32_t features) {
  using namespace rf;
  const int i = (static_cast<int>(blockIdx.x) * static_cast<int>(blockDim.x) +
                 static_cast<int>(threadIdx.x)) *
                4;
  const bool inside = i < features;
  const int64_t element = static_cast<int64_t>(blockIdx.y) * features + i;
  Vec<float, 4> values{};
  if (inside) {
    if (x_f32) {
      values = load16(x_f32 + element);
    } else {
      const auto halves = *reinterpret_cast<const Vec<half, 4>*>(x_f16 + element);
      for (int k = 0; k < 4; ++k) values[k] = to_float(halves[k]);
    }
    const Vec<float, 4> gates = load16(gate + blockIdx.y * stride + i);
    for (int k = 0; k < 4; ++k) values[k] *= sigmoid(gates[k]);
  }
  ActOutput{x_f32, x_f16, x_q, x_q_scale, x_q_lo_offset}.store(element, values, inside);
}
