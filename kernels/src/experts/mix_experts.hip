// Adds up what its experts made of each token, which lies in groups (groups.h).
#include "rf/experts/experts.h"

// out[t] = the sum over c of weights[t, c] * y[places[t, c]], in the order of c, without
// those that are kElsewhere; if not is_sorted, y has the pairs in their own order, and places tells
// only which are there. Rows are f32 of hidden_size elements, a multiple of 4. Grid:
// (ceil(hidden_size / 1024), tokens), block 256.
extern "C" __global__ __launch_bounds__(256) void rf_mix_experts(const float* __restrict__ y,
                                                                 const int32_t* __restrict__ places,
                                                                 const float* __restrict__ weights,
                                                                 float* __restrict__ out,
                                                                 int num_chosen, int hidden_size,
                                                                 int is_sorted) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (column >= hidden_size) return;
  const int64_t token = blockIdx.y;
  rf::Vec<float, 4> sum = 0.0f;
#pragma unroll 8
  for (int c = 0; c < num_chosen; ++c) {
    const int64_t pair = token * num_chosen + c;
    const int64_t place = places[pair];
    if (place == rf::kElsewhere) continue;
    const int64_t row = is_sorted ? place : pair;
    sum += weights[pair] * rf::load16(y + row * hidden_size + column);
  }
  rf::store16(out + token * hidden_size + column, sum);
}
