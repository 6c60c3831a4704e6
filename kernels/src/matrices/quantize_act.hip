// Activations for the linear kernels: int8 blocks for GEMV, halves for GEMM.
#include "rf/activations/act.h"

namespace {

inline constexpr int kThreads = 256;

// Four values of x per lane; lanes past the end get zeros.
__device__ rf::Vec<float, 4> load_four(const float* x, uint64_t index, bool inside) {
  return inside ? rf::load16(x + index) : rf::Vec<float, 4>{};
}

}  // namespace

// x f32 [count] (count = rows * K, a multiple of 32) to the two arrays of rf/activations/act.h,
// with two slices if q_lo_offset is not 0 but count. Grid: (ceil(count / 1024)), block 256.
extern "C" __global__ __launch_bounds__(kThreads) void rf_quantize_act(
    const float* __restrict__ x, int8_t* __restrict__ q, rf::ActScale* __restrict__ scale,
    int32_t q_lo_offset, uint64_t count) {
  rf::let_next_begin_if_few();
  const uint64_t index = (static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  const bool inside = index < count;
  const uint64_t block = index / rf::kActBlock;
  rf::act_store(load_four(x, index, inside), inside, q + block * rf::kActBlock, scale + block,
                q_lo_offset);
}

// x f32 [count] (a multiple of 4) to halves; values beyond the range of a half become +-65504.
// Grid: (ceil(count / 1024)), block 256.
extern "C" __global__ __launch_bounds__(kThreads) void rf_half_act(const float* __restrict__ x,
                                                                   rf::half* __restrict__ out,
                                                                   uint64_t count) {
  const uint64_t index = (static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (index >= count) return;
  const rf::Vec<float, 4> values = rf::load16(x + index);
  rf::Vec<rf::half, 4> halves;
  for (int i = 0; i < 4; ++i) halves[i] = rf::act_half(values[i]);
  *reinterpret_cast<rf::Vec<rf::half, 4>*>(out + index) = halves;
}
