// y = x W^T for very many rows of x, as gemm.hip, with the matrix instructions of Hopper GPUs.
// Compiled once per quantised format, for targets that have them.
#include "rf/gemm/gemm_warpgroup.h"

#if RF_WARPGROUPS
#define RF_RUN(Format)                   \
  using Gemm = rf::WideGemm<rf::Format>; \
  RF_LARGE_LDS(Gemm::Lds, lds);          \
  Gemm::run(arguments, *lds)
#else
#define RF_RUN(Format) static_cast<void>(arguments)
#endif

// As rf_gemm_*, without groups, for an even number of quant blocks. Grid: (ceil(rows / 272),
// ceil(stored rows / 128), splits), block: the most threads that the kernel is compiled for.
#define RF_GEMM_WIDE(name, Format, ...)                                                 \
  extern "C" __global__ __launch_bounds__(256) void rf_gemm_wide_##name(                \
      const uint8_t* __restrict__ weight, const rf::half* __restrict__ x,               \
      const float* __restrict__ bias, const float* __restrict__ up_bias, float* out,    \
      rf::half* out_half, float* partial, int rows, int out_features, int quant_blocks, \
      int activation, int split_quant_blocks) {                                         \
    const rf::GemmArguments arguments{weight,                                           \
                                      x,                                                \
                                      nullptr,                                          \
                                      0,                                                \
                                      rows,                                             \
                                      quant_blocks,                                     \
                                      {out_features, activation},                       \
                                      up_bias,                                          \
                                      {bias, out, out_half},                            \
                                      partial,                                          \
                                      split_quant_blocks};                              \
    RF_RUN(Format);                                                                     \
  }
RF_FORMATS(RF_GEMM_WIDE)
