// As gemm_int8.hip for up to 8 rows, and then the first part of what rf_add_rms_norm does with the
// products: all that needs no other columns, so that no block waits. Compiled once per format.
#include "rf/gemm/int8_gemm.h"

namespace rf {

// Two waves side by side have half of the 32 stored rows of a block each, so that as many waves
// have a part of K as in gemm_int8.hip.
inline constexpr int kInt8DeferredWaves = 2;
inline constexpr int kInt8DeferredThreads = kInt8DeferredWaves * kInt8Threads;

template <class Format>
__device__ __forceinline__ void gemm_int8_deferred(const Int8Arguments& arguments,
                                                   const DeferredRows& to) {
  using Columns = DeferredSums<kDeferredRows, kInt8DeferredWaves * 64>;
  __shared__ Columns::Lds lds;
  Columns columns(to);
  gemm_int8<Format, kDeferredRows, kInt8DeferredWaves, kInt8Waves>(
      arguments, [&] { columns.begin(); }, [&](const auto& total) { columns.finish(lds, total); });
}

}  // namespace rf

// residual [rows, out_features] += what rf_gemm_int8_<format> makes with one slice, plus the bias.
// normed_q, normed_q_scale: the int8 form of the sums times norm_weight. squares: [rows,
// out_features / 32], of the sums (deferred_rows.h). out_features is a multiple of 32.
// Grid: out_features / 32, block twice that of rf_gemm_int8_<format>, or that of
// rf_gemm_int8_wide_*.
#define RF_GEMM_INT8_DEFERRED(name, Format, ...)                                                  \
  extern "C" __global__                                                                           \
  __launch_bounds__(rf::kInt8DeferredThreads) void rf_gemm_int8_deferred_##name(                  \
      const uint8_t* __restrict__ weight, const int8_t* __restrict__ q,                           \
      const rf::ActScale* __restrict__ scale, const float* __restrict__ bias, int rows,           \
      int out_features, int quant_blocks, float* residual, const float* __restrict__ norm_weight, \
      int8_t* normed_q, rf::ActScale* normed_q_scale, float* squares) {                           \
    rf::gemm_int8_deferred<rf::Format>(                                                           \
        {weight, q, scale, {}, rows, 1, quant_blocks, {out_features, rf::kNotGated}, {}},         \
        {bias, residual, norm_weight, normed_q, normed_q_scale, squares, rows, out_features});    \
  }
RF_FORMATS(RF_GEMM_INT8_DEFERRED)
