// Root mean square norm of groups of a row, with a gate: norm(x) * silu(z) as Gated DeltaNet has it
// (Yang et al. 2024), or norm(x * silu(z)) as Mamba-2 does (Dao and Gu 2024).
#include "rf/norm.h"
#include "rf/recurrent.h"

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
  NormRow values, factors;
  float squares = 0.0f;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    values[step] = 0.0f;
    factors[step] = 0.0f;
    if (i >= dim) continue;
    values[step] = load16(x + row + i);
    factors[step] = load16(own_weight + i);
    Vec<float, 4> gate = load16(gate_row + i);
    for (int k = 0; k < 4; ++k) gate[k] = silu(gate[k]);
    if (gate_first) {
      values[step] *= gate;
    } else {
      factors[step] *= gate;
    }
    squares += sum_four(values[step] * values[step]);
  }
  const float mean = block_sum(squares, partial) / static_cast<float>(dim);
  const float factor = rsqrt(mean + eps);
  const ActOutput out{out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset};
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    out.store(row + i, values[step] * factor * factors[step], i < dim);
  }
}
