// Adds up what its experts made of each token, which lies in groups (groups.h).
#include "rf/experts/made_pairs.h"

// out[t] = the sum of the pairs of token t, as made_pairs.h says. Rows are f32 of hidden_size
// elements, a multiple of 4. Grid: (ceil(hidden_size / 1024), tokens), block 256.
extern "C" __global__ __launch_bounds__(256) void rf_mix_experts(const float* __restrict__ y,
                                                                 const int32_t* __restrict__ places,
                                                                 const float* __restrict__ weights,
                                                                 float* __restrict__ out,
                                                                 int num_chosen, int hidden_size,
                                                                 int is_sorted) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (column >= hidden_size) return;
  const int64_t token = blockIdx.y;
  const rf::MadePairs pairs{y, places, weights, num_chosen, is_sorted != 0};
  rf::store16(out + token * hidden_size + column, pairs.sum(token, column, hidden_size));
}
