// Root mean square norm of groups of a row, with a gate: rf/recurrent/gated_norm.h.
#include "rf/recurrent/gated_norm.h"

// x: f32 [T, groups * dim]. z: f32, rows z_stride apart. weight: f32, that of group g begins at
// g * weight_stride: 0 = all groups share one. gate_first: whether the gate is a part of what is
// normed. dim is a multiple of 4 (of 32 for int8) and at most 16 * blockDim.x.
// Grid: (T, groups).
extern "C" __global__ __launch_bounds__(1024) void rf_gated_norm(
    const float* __restrict__ x, const float* __restrict__ z, const float* __restrict__ weight,
    float* __restrict__ out_f32, rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,
    rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset, int64_t z_stride, int32_t dim,
    int32_t weight_stride, int32_t gate_first, float eps) {
  using namespace rf;
  __shared__ float partial[kMaxWaves];
  const int64_t token = blockIdx.x;
  const int group = blockIdx.y;
  const int64_t row = (token * gridDim.y + group) * dim;
  const float* gate_row = z + token * z_stride + group * dim;
  const float* own_weight = weight + static_cast<int64_t>(group) * weight_stride;
  GatedFour fours[kNormSteps];
  float squares = 0.0f;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    fours[step] = {};
    if (i >= dim) continue;
    fours[step] = GatedFour::of(load16(x + row + i), load16(gate_row + i), load16(own_weight + i),
                                gate_first != 0);
    squares += fours[step].squares();
  }
  const float factor = gated_norm_factor(block_sum(squares, partial), dim, eps);
  const ActOutput out{out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset};
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    out.store(row + i, fours[step].normed(factor), i < dim);
  }
}
