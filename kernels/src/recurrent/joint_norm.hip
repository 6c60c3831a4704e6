// Root mean square norm of rows of which each of several devices has a part, with Mamba-2's gate:
// norm(x * silu(z)) (Dao and Gu 2024). One kernel adds up the squares of the part, the other norms
// it once the devices have added up their sums.
#include "rf/norms/norm.h"
#include "rf/recurrent/recurrent.h"

namespace rf {

// Four values of a row times their gate.
__device__ __forceinline__ Vec<float, 4> gated(const float* x, const float* z) {
  Vec<float, 4> gate = load16(z);
  for (int k = 0; k < 4; ++k) gate[k] = silu(gate[k]);
  return load16(x) * gate;
}

}  // namespace rf

// x: f32 [T, dim]. z: f32, rows z_stride apart. squares: f32 [T]. dim is a multiple of 4 and at
// most 16 * blockDim.x. Grid: (T).
extern "C" __global__ __launch_bounds__(1024) void rf_gated_squares(const float* __restrict__ x,
                                                                    const float* __restrict__ z,
                                                                    float* __restrict__ squares,
                                                                    int64_t z_stride, int32_t dim) {
  using namespace rf;
  __shared__ float partial[kMaxWaves];
  const int64_t token = blockIdx.x;
  float sum = 0.0f;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    if (i >= dim) continue;
    const Vec<float, 4> values = gated(x + token * dim + i, z + token * z_stride + i);
    sum += sum_four(values * values);
  }
  const float total = block_sum(sum, partial);
  if (threadIdx.x == 0) squares[token] = total;
}

// As above; weight: f32 [dim]. squares: of all devices. features: the elements that they are of.
// dim is a multiple of 32 for int8. Grid: (T).
extern "C" __global__ __launch_bounds__(1024) void rf_joint_norm(
    const float* __restrict__ x, const float* __restrict__ z, const float* __restrict__ weight,
    const float* __restrict__ squares, float* __restrict__ out_f32, rf::half* __restrict__ out_f16,
    int8_t* __restrict__ out_q, rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset,
    int64_t z_stride, int32_t dim, int32_t features, float eps) {
  using namespace rf;
  const int64_t token = blockIdx.x;
  const float factor = rsqrt(squares[token] / static_cast<float>(features) + eps);
  const ActOutput out{out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset};
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    Vec<float, 4> values = 0.0f;
    if (i < dim) {
      values = gated(x + token * dim + i, z + token * z_stride + i) * factor * load16(weight + i);
    }
    out.store(token * dim + i, values, i < dim);
  }
}
