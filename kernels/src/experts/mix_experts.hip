// Adds up what its experts made of each token, which lies in groups (groups.h).
#include "rf/experts/made_pairs.h"
#include "rf/norms/rms_norm.h"

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
  rf::Vec<float, 4> total[1];
  pairs.sum(token, hidden_size, [=](int) { return column; }, total);
  rf::store16(out + token * hidden_size + column, total[0]);
}

namespace rf {

// Rows that are sums of pairs, for the norm of what they are added to.
struct RowsOfPairs {
  MadePairs pairs;

  __device__ __forceinline__ void load(int64_t row, int hidden_size, NormRow& to) const {
    pairs.sum(row, hidden_size, norm_index, to);
  }
};

}  // namespace rf

// residual += what rf_mix_experts makes, then the norm of residual. Grid: (tokens), block at most
// 512: with more, registers spill on NVIDIA GPUs.
extern "C" __global__ __launch_bounds__(512) void rf_add_pairs_rms_norm(
    const float* __restrict__ y, const int32_t* __restrict__ places,
    const float* __restrict__ weights, float* __restrict__ residual,
    const float* __restrict__ weight, float* __restrict__ out_f32, rf::half* __restrict__ out_f16,
    int8_t* __restrict__ out_q, rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset,
    int32_t num_chosen, int32_t is_sorted, int32_t hidden_size, float eps) {
  const rf::MadePairs pairs{y, places, weights, num_chosen, is_sorted != 0};
  rf::rms_norm<true>(blockIdx.x, rf::RowsOfPairs{pairs}, {residual, residual},
                     {weight, {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}}, {},
                     hidden_size, eps, [=] {
                       rf::wait_for_previous(y, places, weights, residual);
                       rf::let_next_begin_if_few_rows();
                     });
}
