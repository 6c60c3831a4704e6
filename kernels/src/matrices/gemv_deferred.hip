// As gemv.hip for one row, and then the first part of what rf_add_rms_norm does with the product:
// all that needs no other columns, so that no block waits. For all formats of a group at once, as
// gemv_mixed.hip.
#include "rf/experts/logit_sums.h"
#include "rf/gemv/deferred_norm.h"
#include "rf/gemv/gemv_deferred.h"
#include "rf/gemv/gemv_formats.h"

namespace rf {

template <class Router>
__device__ __forceinline__ void gemv_deferred(const uint8_t* weight, const Activations& x,
                                              const float* bias, int out_features, int format,
                                              DeferredColumns columns, Router router) {
  __shared__ DeferredParts<> parts;
  const Outputs outputs{out_features, kNotGated};
  const int block = static_cast<int>(blockIdx.x);
  const auto begun = [&] {
    router.fetch(block);
    x.wait();
    columns.begin();
  };
#define RF_CASE(number, Format) \
  case number: deferred_sums<Format>(weight, x, outputs, block, parts, begun); break;
  switch (format) { RF_FORMAT_NUMBERS(RF_CASE) }
#undef RF_CASE
  router.ask(block);
  columns.finish(parts, static_cast<int>(blockDim.x) / (kWave * kDeferredTiles),
                 [&](int column, float sum) { return bias ? sum + bias[column] : sum; });
  router.add(parts.weighted, block);
}

}  // namespace rf

// residual [out_features] += what rf_gemv_<format>_r1 makes with one slice, where `format` is the
// number of the format. normed_q, normed_q_scale: the int8 form of the sum times norm_weight.
// squares: [out_features / 32], of the sum (deferred_norm.h). out_features is a multiple of 32.
// Grid: out_features / 32, block twice that of rf_gemv_<format>_r1.
extern "C" __global__ __launch_bounds__(rf::kDeferredBound) void RF_OF_GROUP(rf_gemv_deferred)(
    const uint8_t* RF_EARLY weight, const int8_t* __restrict__ q,
    const rf::ActScale* __restrict__ scale, const float* __restrict__ bias, int out_features,
    int quant_blocks, int format, float* residual, const float* __restrict__ norm_weight,
    int8_t* normed_q, rf::ActScale* normed_q_scale, float* squares) {
  rf::gemv_deferred(weight, {q, scale, 1, 1, quant_blocks}, bias, out_features, format,
                    {residual, norm_weight, normed_q, normed_q_scale, squares}, rf::NoRouter{});
}

// The same, and what a router, f32 [logits, out_features], makes of the columns of the norm is
// added to logit_sums, int64 [logits] (experts/logit_sums.h).
extern "C" __global__ __launch_bounds__(rf::kDeferredBound) void RF_OF_GROUP(
    rf_gemv_deferred_route)(const uint8_t* RF_EARLY weight, const int8_t* __restrict__ q,
                            const rf::ActScale* __restrict__ scale, const float* __restrict__ bias,
                            int out_features, int quant_blocks, int format, float* residual,
                            const float* __restrict__ norm_weight, int8_t* normed_q,
                            rf::ActScale* normed_q_scale, float* squares,
                            const float* __restrict__ router, int64_t* logit_sums, int logits) {
  rf::gemv_deferred(weight, {q, scale, 1, 1, quant_blocks}, bias, out_features, format,
                    {residual, norm_weight, normed_q, normed_q_scale, squares},
                    rf::RouterColumns{router, logit_sums, logits, out_features});
}
