// The shared expert's result is added to that of the others.
#include "rf/wave.h"

// shared[t] = mixed[t] + weight * shared[t] for f32 rows of `features` elements (a multiple of 4).
// The weight is sigmoid(x[t] @ router), or 1 where the router, f32 [features], is null.
// Grid: rows, block 256.
extern "C" __global__ __launch_bounds__(256) void rf_add_shared(const float* __restrict__ mixed,
                                                                float* __restrict__ shared,
                                                                const float* __restrict__ x,
                                                                const float* __restrict__ router,
                                                                int features) {
  __shared__ float scratch[rf::kMaxWaves];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * features;
  float weight = 1.0f;
  if (router) {
    float sum = 0.0f;
    for (int i = threadIdx.x * 4; i < features; i += blockDim.x * 4) {
      const auto values = rf::load16(x + row + i);
      const auto factors = rf::load16(router + i);
      for (int k = 0; k < 4; ++k) sum = rf::fma(values[k], factors[k], sum);
    }
    weight = 1.0f / (1.0f + rf::exp(-rf::block_sum(sum, scratch)));
  }
  for (int i = threadIdx.x * 4; i < features; i += blockDim.x * 4) {
    rf::store16(shared + row + i,
                rf::load16(mixed + row + i) + weight * rf::load16(shared + row + i));
  }
}
