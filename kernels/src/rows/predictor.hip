// What a predictor reads beside tokens: hidden states, kept in the blocks of the cache.
#include "rf/activations/act.h"
#include "rf/norms/rms_norm.h"

// hidden[slots[row]] = x[row] as halves, of hidden_size elements (a multiple of 4); nothing for a
// slot below 0. Grid: (ceil(hidden_size / 1024), rows), block 256.
extern "C" __global__ __launch_bounds__(256) void rf_store_hidden(const float* __restrict__ x,
                                                                  const int64_t* __restrict__ slots,
                                                                  rf::half* __restrict__ hidden,
                                                                  int32_t hidden_size) {
  using namespace rf;
  const int i = (static_cast<int>(blockIdx.x) * static_cast<int>(blockDim.x) +
                 static_cast<int>(threadIdx.x)) *
                4;
  const int64_t slot = slots[blockIdx.y];
  if (i >= hidden_size || slot < 0) return;
  const Vec<float, 4> values = load16(x + static_cast<int64_t>(blockIdx.y) * hidden_size + i);
  Vec<half, 4> halves;
  for (int k = 0; k < 4; ++k) halves[k] = act_half(values[k]);
  *reinterpret_cast<Vec<half, 4>*>(hidden + slot * hidden_size + i) = halves;
}

// Rows of 2 * hidden_size: the norm of x[row], and behind it that of hidden[before[row]], which is
// zeros if before[row] is below 0. hidden_size is as for `rms_norm`. Grid: (rows, 2).
extern "C" __global__ __launch_bounds__(1024) void rf_beside_hidden(
    const float* __restrict__ x, const rf::half* __restrict__ hidden,
    const int64_t* __restrict__ before, const float* __restrict__ x_norm,
    const float* __restrict__ hidden_norm, float* __restrict__ out_f32,
    rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,
    rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset, int32_t hidden_size,
    float eps) {
  using namespace rf;
  __shared__ float partial[kMaxWaves];
  const int64_t row = blockIdx.x;
  const bool of_hidden = blockIdx.y != 0;
  const float* weight = of_hidden ? hidden_norm : x_norm;
  const int64_t slot = of_hidden ? before[row] : row;
  NormRow values, weights;
  float squares = 0.0f;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    values[step] = 0.0f;
    weights[step] = 0.0f;
    if (i >= hidden_size) continue;
    weights[step] = load16(weight + i);
    if (!of_hidden) {
      values[step] = load16(x + slot * hidden_size + i);
    } else if (slot >= 0) {
      const auto halves = *reinterpret_cast<const Vec<half, 4>*>(hidden + slot * hidden_size + i);
      for (int k = 0; k < 4; ++k) values[step][k] = to_float(halves[k]);
    }
    squares += sum_four(values[step] * values[step]);
  }
  const float factor = rsqrt(block_sum(squares, partial) / static_cast<float>(hidden_size) + eps);
  const ActOutput out{out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset};
  const int64_t first = (2 * row + blockIdx.y) * hidden_size;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    out.store(first + i, values[step] * factor * weights[step], i < hidden_size);
  }
}
