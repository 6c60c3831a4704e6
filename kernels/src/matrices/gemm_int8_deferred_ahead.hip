// As gemm_int8_deferred.hip, with weights that come through LDS (int8_ahead.h): on Hopper GPUs.
// Compiled once per format.
#include "rf/gemm/int8_ahead.h"

#if RF_WARPGROUPS
#define RF_RUN(Format) rf::gemm_int8_deferred_ahead<rf::Format>(arguments, to)

namespace rf {

template <class Format>
__device__ __forceinline__ void gemm_int8_deferred_ahead(const Int8Arguments& arguments,
                                                         const DeferredRows& to) {
  using Columns = DeferredSums<kDeferredRows, 64>;
  using Product = Int8Ahead<Format, kDeferredRows, sizeof(typename Columns::Lds)>;
  struct Lds {
    typename Product::Lds product;
    typename Columns::Lds columns;
  };
  RF_LARGE_LDS(Lds, lds);
  Columns columns(to);
  Product::run(
      arguments, lds->product, [&] { columns.begin(); },
      [&](const auto& total) { columns.finish(lds->columns, total); });
}

}  // namespace rf
#else
#define RF_RUN(Format) static_cast<void>(arguments), static_cast<void>(to)
#endif

// Arguments and result are those of rf_gemm_int8_deferred_*, of rows of whole steps
// (int8_ahead.h). Grid and block likewise.
#define RF_GEMM_INT8_DEFERRED_AHEAD(name, Format, ...)                                            \
  extern "C" __global__                                                                           \
  __launch_bounds__(rf::kInt8Threads) void rf_gemm_int8_deferred_ahead_##name(                    \
      const uint8_t* __restrict__ weight, const int8_t* __restrict__ q,                           \
      const rf::ActScale* __restrict__ scale, const float* __restrict__ bias, int rows,           \
      int out_features, int quant_blocks, float* residual, const float* __restrict__ norm_weight, \
      int8_t* normed_q, rf::ActScale* normed_q_scale, float* squares) {                           \
    const rf::Int8Arguments arguments{                                                            \
        weight, q, scale, {}, rows, 1, quant_blocks, {out_features, rf::kNotGated}, {}};          \
    const rf::DeferredRows to{bias,           residual, norm_weight, normed_q,                    \
                              normed_q_scale, squares,  rows,        out_features};               \
    RF_RUN(Format);                                                                               \
  }
RF_FORMATS(RF_GEMM_INT8_DEFERRED_AHEAD)
