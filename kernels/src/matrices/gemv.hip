// y = W x for a few rows of x, with quantised W: the linear layers of decode steps.
//
// Bound by reading W once. Weights stay packed until they meet int8 activations in dot4, so a
// weight costs about one and a half instructions. Compiled once per format.
#include "rf/gemv/gemv.h"

// weight: a matrix of weights.h. q, scale: an activation [rows, 32 * quant_blocks] of act.h, with 1
// to kRows rows in all slices together. out: f32 [rows, out_features] = activation @ weight.T,
// gated if `activation` says so (gate.h), plus bias [out_features] where that is not null. Grid:
// stored rows / 16, block 64 to 256.
#define RF_GEMV(name, Format, kRows)                                                              \
  extern "C" __global__ __launch_bounds__(rf::kGemvThreads,                                       \
                                          rf::kGemvBlocks<rf::Format, kRows>) void                \
      rf_gemv_##name##_r##kRows(const uint8_t* RF_EARLY weight, const int8_t* __restrict__ q,     \
                                const rf::ActScale* __restrict__ scale,                           \
                                const float* __restrict__ bias, float* out, int rows, int slices, \
                                int out_features, int quant_blocks, int activation) {             \
    const rf::Activations x{q, scale, rows, slices, quant_blocks};                                \
    const rf::Outputs outputs{out_features, activation};                                          \
    const int tile = static_cast<int>(blockIdx.x);                                                \
    float sums[kRows][rf::kGroups] = {};                                                          \
    rf::gemv_sums<rf::Format>(weight, x, outputs, tile, sums);                                    \
    if constexpr (kRows == 1) rf::let_next_begin();                                               \
    rf::gemv_finish(sums, x, outputs, tile, {bias, out, nullptr});                                \
  }

#define RF_GEMV_OF(name, Format, ...) \
  RF_GEMV(name, Format, 1)            \
  RF_GEMV(name, Format, 2)            \
  RF_GEMV(name, Format, 4)            \
  RF_GEMV(name, Format, 8)
RF_FORMATS(RF_GEMV_OF)
