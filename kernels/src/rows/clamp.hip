// Bounds around products: beyond them, a number becomes the nearer one (Gemma 4 E2B and E4B).
#include "rf/activations/act.h"
#include "rf/activations/gate.h"

namespace rf {

inline constexpr int kClampThreads = 256;

// What is no number stays as it is.
__device__ __forceinline__ float clamp(float x, float least, float most) {
  if (x < least) return least;
  return x > most ? most : x;
}

__device__ __forceinline__ int64_t clamped_index(int items) {
  return (static_cast<int64_t>(blockIdx.x) * kClampThreads + static_cast<int64_t>(threadIdx.x)) *
         items;
}

}  // namespace rf

// Halves [count] (a multiple of 8) within bounds, the least and the most. out may be x.
// Grid: (ceil(count / 2048)), block 256.
extern "C" __global__ __launch_bounds__(rf::kClampThreads) void rf_clamp_half(
    const rf::half* x, rf::half* out, const float* __restrict__ bounds, int64_t count) {
  using namespace rf;
  const int64_t index = clamped_index(8);
  if (index >= count) return;
  const float least = bounds[0], most = bounds[1];
  Vec<half, 8> values = load16(x + index);
  for (int i = 0; i < 8; ++i) values[i] = to_half(clamp(to_float(values[i]), least, most));
  store16(out + index, values);
}

// The same of floats [count] (a multiple of 4), in place.
// Grid: (ceil(count / 1024)), block 256.
extern "C" __global__ __launch_bounds__(rf::kClampThreads) void rf_clamp_float(
    float* x, const float* __restrict__ bounds, int64_t count) {
  using namespace rf;
  const int64_t index = clamped_index(4);
  if (index >= count) return;
  const float least = bounds[0], most = bounds[1];
  Vec<float, 4> values = load16(x + index);
  for (int i = 0; i < 4; ++i) values[i] = clamp(values[i], least, most);
  store16(x + index, values);
}

// gate = activation(gate) * up of halves [count] (a multiple of 8), each within bounds of its own;
// the activation is one of gate.h.
// Grid: (ceil(count / 2048)), block 256.
extern "C" __global__ __launch_bounds__(rf::kClampThreads) void rf_gate_clamped_half(
    rf::half* __restrict__ gate, const rf::half* __restrict__ up,
    const float* __restrict__ gate_bounds, const float* __restrict__ up_bounds, int64_t count,
    int32_t activation) {
  using namespace rf;
  const int64_t index = clamped_index(8);
  if (index >= count) return;
  Vec<half, 8> values = load16(gate + index);
  const Vec<half, 8> ups = load16(up + index);
  for (int i = 0; i < 8; ++i) {
    const float first = clamp(to_float(values[i]), gate_bounds[0], gate_bounds[1]);
    const float second = clamp(to_float(ups[i]), up_bounds[0], up_bounds[1]);
    values[i] = act_half(gated(first, second, activation));
  }
  store16(gate + index, values);
}
