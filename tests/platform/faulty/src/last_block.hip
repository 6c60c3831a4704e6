// Right: what each block has stored and read by itself, the last of them adds up. For the machine
// code around its arrival, tests/kernels/compiled/test_fences.py.
#include "rf/last_block.h"

extern "C" __global__ __launch_bounds__(256) void rf_last_block(float* partial, const float* x,
                                                                float* total, uint32_t* arrived) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  partial[i] = x[i];
  // With this value there, the store is out as well: the compiler knows of nothing to wait for.
  const bool is_positive = rf::ballot(x[i + 1] > 0.0f) != 0;
  if (!rf::is_last_block(arrived, gridDim.x)) return;
  float sum = is_positive ? 1.0f : 0.0f;
  for (unsigned k = 0; k < gridDim.x; k++) sum += partial[k * blockDim.x + threadIdx.x];
  total[threadIdx.x] = sum;
}
