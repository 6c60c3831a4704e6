// Root mean square norm of groups of a row, with a gate: rf/recurrent/gated_norm.h.
#include "rf/recurrent/gated_norm.h"

namespace rf {

// A group that a wave norms.
__device__ __forceinline__ void norm_in_wave(const GatedRows& rows, const ActOutput& out,
                                             int64_t first, int dim, float eps) {
  const int i = lane_id() * 4;
  const bool has_four = i < dim;
  const GatedFour four = has_four ? rows.four(i) : GatedFour{};
  const float factor = gated_norm_factor(wave_sum(four.squares()), dim, eps);
  out.store(first + i, four.normed(factor), has_four);
}

// A group that a block norms.
__device__ __forceinline__ void norm_in_block(const GatedRows& rows, const ActOutput& out,
                                              int64_t first, int dim, float eps) {
  __shared__ float partial[kMaxWaves];
  GatedFour fours[kNormSteps];
  float squares = 0.0f;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    fours[step] = {};
    if (i >= dim) continue;
    fours[step] = rows.four(i);
    squares += fours[step].squares();
  }
  const float factor = gated_norm_factor(block_sum(squares, partial), dim, eps);
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    out.store(first + i, fours[step].normed(factor), i < dim);
  }
}

}  // namespace rf

// x: f32 [T, groups * dim]. z: f32, rows z_stride apart. weight: f32, that of group g begins at
// g * weight_stride: 0 = all groups share one. gate_first: whether the gate is a part of what is
// normed. dim is a multiple of 4 (of 32 for int8) and at most 16 * blockDim.x.
// Grid: T and as many blocks as the groups take: a wave has one of up to 4 * kWave elements, and a
// block one that is larger.
extern "C" __global__ __launch_bounds__(1024) void rf_gated_norm(
    const float* __restrict__ x, const float* __restrict__ z, const float* __restrict__ weight,
    float* __restrict__ out_f32, rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,
    rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset, int64_t z_stride,
    int32_t groups, int32_t dim, int32_t weight_stride, int32_t gate_first, float eps) {
  using namespace rf;
  const bool is_small = dim <= 4 * kWave;
  const int of_block = is_small ? static_cast<int>(blockDim.x) / kWave : 1;
  const int group = static_cast<int>(blockIdx.y) * of_block + (is_small ? wave_id() : 0);
  if (group >= groups) return;
  const int64_t token = blockIdx.x;
  const int64_t first = (token * groups + group) * dim;
  const GatedRows rows{x + first, z + token * z_stride + group * dim,
                       weight + static_cast<int64_t>(group) * weight_stride, gate_first != 0};
  const ActOutput out{out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset};
  if (is_small) {
    norm_in_wave(rows, out, first, dim, eps);
  } else {
    norm_in_block(rows, out, first, dim, eps);
  }
}
