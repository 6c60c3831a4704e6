// GELU of what comes from one matrix product and goes to the next.
#include "rf/gelu.h"

namespace rf {

inline constexpr int kGeluThreads = 256;

}  // namespace rf

// Halves [count] (a multiple of 8), in place, as GEMM reads and writes them.
// Grid: (ceil(count / 2048)), block 256.
extern "C" __global__ __launch_bounds__(rf::kGeluThreads) void rf_gelu_half(rf::half* x,
                                                                            uint64_t count) {
  const uint64_t index = (static_cast<uint64_t>(blockIdx.x) * rf::kGeluThreads + threadIdx.x) * 8;
  if (index >= count) return;
  rf::Vec<rf::half, 8> values = rf::load16(x + index);
  for (int i = 0; i < 8; ++i) values[i] = rf::to_half(rf::gelu(rf::to_float(values[i])));
  rf::store16(x + index, values);
}
