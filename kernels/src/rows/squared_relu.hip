// The activation of feed-forward networks without a gate: squared ReLU (So et al. 2021).
#include "rf/activations/act_output.h"
#include "rf/activations/gate.h"

// x = max(x, 0)^2 for `count` f32 or f16 elements (a multiple of 4; rows of a multiple of 32 for
// int8), in place. Of f32 there may be an int8 form besides, which is written only.
// Grid: (ceil(count / 1024)), block 256.
extern "C" __global__ __launch_bounds__(256) void rf_squared_relu(
    float* x_f32, rf::half* x_f16, int8_t* __restrict__ x_q, rf::ActScale* __restrict__ x_q_scale,
    int32_t x_q_lo_offset, int64_t count) {
  using namespace rf;
  const int64_t element =
      (static_cast<int64_t>(blockIdx.x) * blockDim.x + static_cast<int64_t>(threadIdx.x)) * 4;
  const bool inside = element < count;
  Vec<float, 4> values{};
  if (inside) {
    if (x_f32) {
      values = load16(x_f32 + element);
    } else {
      const auto halves = *reinterpret_cast<const Vec<half, 4>*>(x_f16 + element);
      for (int k = 0; k < 4; ++k) values[k] = to_float(halves[k]);
    }
    for (int k = 0; k < 4; ++k) values[k] = squared_relu(values[k]);
  }
  ActOutput{x_f32, x_f16, x_q, x_q_scale, x_q_lo_offset}.store(element, values, inside);
}
