// GELU of what comes from one matrix product and goes to the next.
#include "rf/activations/gate.h"

namespace rf {

inline constexpr int kGeluThreads = 256;

// Hendrycks and Gimpel 2016, section 2: a sigmoid in the place of the normal distribution.
__device__ __forceinline__ float quick_gelu(float x) { return x * rcp(1.0f + exp(-1.702f * x)); }

__device__ __forceinline__ float gelu_tanh(float x) { return gated(x, 1.0f, kGeluTanh); }

template <float (*kFunction)(float)>
__device__ __forceinline__ void gelu_halves(half* x, uint64_t count) {
  const uint64_t index = (static_cast<uint64_t>(blockIdx.x) * kGeluThreads + threadIdx.x) * 8;
  if (index >= count) return;
  Vec<half, 8> values = load16(x + index);
  for (int i = 0; i < 8; ++i) values[i] = to_half(kFunction(to_float(values[i])));
  store16(x + index, values);
}

}  // namespace rf

// Halves [count] (a multiple of 8), in place, as GEMM reads and writes them.
// Grid: (ceil(count / 2048)), block 256.
extern "C" __global__ __launch_bounds__(rf::kGeluThreads) void rf_gelu_half(rf::half* x,
                                                                            uint64_t count) {
  rf::gelu_halves<rf::gelu>(x, count);
}

// The same with the form that has tanh in it.
extern "C" __global__ __launch_bounds__(rf::kGeluThreads) void rf_gelu_tanh_half(rf::half* x,
                                                                                 uint64_t count) {
  rf::gelu_halves<rf::gelu_tanh>(x, count);
}

// The same with the form that has a sigmoid in it.
extern "C" __global__ __launch_bounds__(rf::kGeluThreads) void rf_gelu_quick_half(rf::half* x,
                                                                                  uint64_t count) {
  rf::gelu_halves<rf::quick_gelu>(x, count);
}
