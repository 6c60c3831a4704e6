// Kernels that do what rf_gemm_* do, without groups.
#pragma once

#include "rf/gemm/gemm_block.h"
#include "rf/mma/warpgroup.h"
#include "rf/weights/formats.h"

#if RF_WARPGROUPS
#define RF_UNGROUPED_BOUNDS(...) __launch_bounds__((__VA_ARGS__::kThreads), (__VA_ARGS__::kBlocks))
#define RF_UNGROUPED_RUN(Format, ...) \
  using Gemm = __VA_ARGS__;           \
  RF_LARGE_LDS(Gemm::Lds, lds);       \
  rf::prepare<rf::Format>();          \
  Gemm::run(arguments, *lds)
#else
#define RF_UNGROUPED_BOUNDS(...) __launch_bounds__(256)
#define RF_UNGROUPED_RUN(Format, ...) static_cast<void>(arguments)
#endif

// Defines such a kernel, `name`, for tiles of so many rows of x: it does what the class does that
// is last. Grid: (ceil(rows / kTileRows), ceil(stored rows / 128), splits), block: the most threads
// that the kernel is compiled for.
#define RF_UNGROUPED_GEMM(name, Format, kTileRows, ...)                                 \
  extern "C" __global__ RF_UNGROUPED_BOUNDS(__VA_ARGS__) void name(                     \
      const uint8_t* __restrict__ weight, const rf::half* __restrict__ x,               \
      const float* __restrict__ bias, const float* __restrict__ up_bias, float* out,    \
      rf::half* out_half, float* partial, int rows, int out_features, int quant_blocks, \
      int activation, int split_quant_blocks) {                                         \
    const rf::GemmArguments arguments{weight,                                           \
                                      x,                                                \
                                      nullptr,                                          \
                                      static_cast<int>(blockIdx.x) * (kTileRows),       \
                                      rows,                                             \
                                      quant_blocks,                                     \
                                      {out_features, activation},                       \
                                      up_bias,                                          \
                                      {bias, out, out_half},                            \
                                      partial,                                          \
                                      split_quant_blocks};                              \
    RF_UNGROUPED_RUN(Format, __VA_ARGS__);                                              \
  }
