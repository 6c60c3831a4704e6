// As gemv.hip for one row, and then the first part of what rf_add_rms_norm does with the product:
// all that needs no other columns, so that no block waits. For all formats at once, as
// gemv_mixed.hip.
#include "rf/gemv_deferred.h"
#include "rf/gemv_formats.h"

// residual [out_features] += what rf_gemv_<format>_r1 makes with one slice, where `format` is the
// number of the format. normed_q, normed_q_scale: the int8 form of the sum times norm_weight.
// squares: [out_features / 32], of the sum (deferred_norm.h). out_features is a multiple of 32.
// Grid: out_features / 32, block twice that of rf_gemv_<format>_r1.
extern "C" __global__ __launch_bounds__(rf::kDeferredBound) void rf_gemv_deferred(
    const uint8_t* __restrict__ weight, const int8_t* __restrict__ q,
    const rf::ActScale* __restrict__ scale, const float* __restrict__ bias, int out_features,
    int quant_blocks, int format, float* residual, const float* __restrict__ norm_weight,
    int8_t* normed_q, rf::ActScale* normed_q_scale, float* squares) {
  __shared__ rf::DeferredParts<> parts;
  const rf::Activations x{q, scale, 1, 1, quant_blocks};
  const rf::Outputs outputs{out_features, rf::kNotGated};
  rf::DeferredColumns columns{residual, norm_weight, normed_q, normed_q_scale, squares};
#define RF_CASE(number, Format) \
  case number: rf::deferred_sums<rf::Format>(weight, x, outputs, columns, parts); break;
  switch (format) { RF_FORMAT_NUMBERS(RF_CASE) }
#undef RF_CASE
  const auto biased = [&](int column, float sum) { return bias ? sum + bias[column] : sum; };
  columns.finish(parts, static_cast<int>(blockDim.x) / (rf::kWave * rf::kDeferredTiles), biased);
}
