// y = x W^T for up to 8 rows of x and a large W, as gemm_int8.hip, for Hopper GPUs. Compiled once
// per format of super-blocks with a scale and an offset that were measured to be faster so.
#include "rf/gemm/int8_stream.h"

#if RF_WARPGROUPS
#define RF_RUN(Format)                       \
  using Stream = rf::Int8Stream<rf::Format>; \
  RF_LARGE_LDS(Stream::Lds, lds);            \
  Stream::run(arguments, *lds)
#else
#define RF_RUN(Format) static_cast<void>(arguments)
#endif

// Arguments and result are those of rf_gemm_int8_*, with up to kStreamRows rows in all slices
// together, and at most kStreamQuantBlocks quant blocks. Grid: any number of blocks, at best one to
// a multiprocessor; block: kStreamThreads.
#define RF_GEMM_INT8_STREAM(name, Format, ...)                                                 \
  extern "C" __global__ __launch_bounds__(rf::kStreamThreads) void rf_gemm_int8_stream_##name( \
      const uint8_t* __restrict__ weight, const int8_t* __restrict__ q,                        \
      const rf::ActScale* __restrict__ scale, const float* __restrict__ bias, float* out,      \
      rf::half* out_half, int rows, int slices, int out_features, int quant_blocks,            \
      int activation, const float* __restrict__ squares, float eps) {                          \
    const rf::Int8Arguments arguments{weight,                                                  \
                                      q,                                                       \
                                      scale,                                                   \
                                      {squares, eps},                                          \
                                      rows,                                                    \
                                      slices,                                                  \
                                      quant_blocks,                                            \
                                      {out_features, activation},                              \
                                      {bias, out, out_half}};                                  \
    RF_RUN(Format);                                                                            \
  }
RF_FORMATS(RF_GEMM_INT8_STREAM)
