// Caps logits as Gemma 2 does: cap * tanh(x / cap).
#include "rf/platform.h"

namespace {

inline constexpr int kThreads = 256;

}  // namespace

// x: f32 [count], changed in place. Grid: (ceil(count / 256)), block 256.
extern "C" __global__ __launch_bounds__(kThreads) void rf_softcap(float* __restrict__ x, float cap,
                                                                  int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) x[i] = cap * rf::tanh(x[i] / cap);
}
