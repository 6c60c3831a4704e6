// A token's other embedding is gated by what a layer has made of the token (Gemma 3n and 4).
#include "rf/activations/act_output.h"
#include "rf/activations/gate.h"

// out = GELU(gate) * scale * (rows + projected), in its form with tanh. gate: f32 rows of
// `features` elements (a multiple of 4; of 32 for int8); rows, projected: f32, rows `stride` apart.
// Grid: (ceil(features / 1024), rows), block 256.
extern "C" __global__ __launch_bounds__(256) void rf_gate_per_layer(
    const float* __restrict__ gate, const float* __restrict__ rows,
    const float* __restrict__ projected, float* __restrict__ out_f32,
    rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,
    rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset, int64_t stride,
    int32_t features, float scale) {
  using namespace rf;
  const int i = (static_cast<int>(blockIdx.x) * static_cast<int>(blockDim.x) +
                 static_cast<int>(threadIdx.x)) *
                4;
  const bool inside = i < features;
  const int64_t element = static_cast<int64_t>(blockIdx.y) * features + i;
  Vec<float, 4> values{};
  if (inside) {
    const int64_t there = static_cast<int64_t>(blockIdx.y) * stride + i;
    values = scale * (load16(rows + there) + load16(projected + there));
    const Vec<float, 4> gates = load16(gate + element);
    for (int k = 0; k < 4; ++k) values[k] = gated(gates[k], values[k], kGeluTanh);
  }
  ActOutput{out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}.store(element, values, inside);
}
