// Products of one row of which the first columns are those of a norm, that of queries or keys
// before they leave the latent space: as gemv_deferred.hip for these, and as gemv_mixed.hip for the
// others.
#include "rf/gemv/deferred_norm.h"
#include "rf/gemv/gemv_deferred.h"
#include "rf/gemv/gemv_formats.h"

// What rf_gemv_deferred_mixed makes of up to two matrices, or rf_gemv_mixed_r1 where `completed`,
// the sums of squares of q, is null. The norm of the first `normed_columns` columns, a multiple of
// 32, is left for what reads it: normed_q, normed_q_scale and squares are of these. Grid: the
// stored rows of both matrices / 32, block twice that of rf_gemv_mixed_r1.
extern "C" __global__ __launch_bounds__(rf::kDeferredBound) void rf_gemv_deferred_first(
    const uint8_t* RF_EARLY first_weight, const float* __restrict__ first_bias, float* first_out,
    int first_out_features, int first_format, const uint8_t* RF_EARLY second_weight,
    const float* __restrict__ second_bias, float* second_out, int second_out_features,
    int second_format, const int8_t* __restrict__ q, const rf::ActScale* __restrict__ scale,
    int quant_blocks, const float* __restrict__ completed, float completed_eps, int normed_columns,
    const float* __restrict__ norm_weight, int8_t* normed_q, rf::ActScale* normed_q_scale,
    float* squares) {
  __shared__ rf::DeferredParts<> parts;
  const int tiles = rf::Outputs{first_out_features, rf::kNotGated}.stored_rows() / rf::kActBlock;
  const bool is_first = static_cast<int>(blockIdx.x) < tiles;
  const int block = static_cast<int>(blockIdx.x) - (is_first ? 0 : tiles);
  const int column = block * rf::kActBlock + static_cast<int>(threadIdx.x);
  const bool is_normed = is_first && block * rf::kActBlock < normed_columns;
  const uint8_t* weight = is_first ? first_weight : second_weight;
  const float* bias = is_first ? first_bias : second_bias;
  float* out = is_first ? first_out : second_out;
  const rf::Outputs outputs{is_first ? first_out_features : second_out_features, rf::kNotGated};
  rf::NormedActivations x{{q, scale, 1, 1, quant_blocks}, completed, completed_eps, 1.0f};
  rf::DeferredColumns columns{out, norm_weight, normed_q, normed_q_scale, squares};
  const auto begun = [&] {
    rf::wait_for_previous(q, scale, completed);
    if (completed) x.find_factor();
    if (is_normed && threadIdx.x < rf::kActBlock) columns.own_weight = norm_weight[column];
  };
#define RF_CASE(number, Format) \
  case number: rf::deferred_sums<rf::Format>(weight, x, outputs, block, parts, begun); break;
  switch (is_first ? first_format : second_format) { RF_FORMAT_NUMBERS(RF_CASE) }
#undef RF_CASE
  const int waves = static_cast<int>(blockDim.x) / (rf::kWave * rf::kDeferredTiles);
  const auto biased = [&](int i, float sum) { return bias ? sum + bias[i] : sum; };
  if (is_normed) {
    columns.finish(parts, waves, biased);
    return;
  }
  __syncthreads();
  if (threadIdx.x < rf::kActBlock && column < outputs.out_features) {
    out[column] = biased(column, rf::column_sum(parts, waves, threadIdx.x));
  }
}
