// Gathers the rows whose logits are needed.
#include "rf/platform.h"

// out[i] = x[rows[i]] for f32 rows of hidden_size elements (a multiple of 4).
// Grid: (ceil(hidden_size / (4 * blockDim.x)), number of rows to take).
extern "C" __global__ __launch_bounds__(256) void rf_take_rows(const float* __restrict__ x,
                                                               const int32_t* __restrict__ rows,
                                                               float* __restrict__ out,
                                                               int32_t hidden_size) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (i >= hidden_size) return;
  const int64_t source = static_cast<int64_t>(rows[blockIdx.y]) * hidden_size;
  const int64_t target = static_cast<int64_t>(blockIdx.y) * hidden_size;
  rf::store16(out + target + i, rf::load16(x + source + i));
}
