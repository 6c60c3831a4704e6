// Kernels that do what rf_gemm_* do, without groups.
#pragma once

#include "rf/gemm/gemm_block.h"

// Defines such a kernel, `name`, with tiles of so many rows and for so many threads: it does what
// is last, with `arguments`.
#define RF_UNGROUPED_GEMM(name, kTileRows, bounds, ...)                                 \
  extern "C" __global__ bounds void name(                                               \
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
    __VA_ARGS__;                                                                        \
  }
