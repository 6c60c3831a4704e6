// y = x W^T for a few rows of x, with quantised W, on int8 matrix instructions (int8_gemm.h).
// Compiled once per format.
#include "rf/gemm/int8_gemm.h"

// On an H200, where so many such blocks are measured to be faster than fewer with more registers.
#if RF_NVIDIA
#define RF_INT8_BOUNDS (rf::kInt8Threads, 2)
#define RF_INT8_WIDE_BOUNDS (rf::kInt8WideThreads, 4)
#else
#define RF_INT8_BOUNDS (rf::kInt8Threads)
#define RF_INT8_WIDE_BOUNDS (rf::kInt8WideThreads)
#endif

// Arguments and result are those of rf_gemv_*, with 1 to 8 rows in all slices together, or to 16
// for _wide_r16, and at least 8 quant blocks. out_half gets the result in halves if out is null.
// squares: null, or of rows of one slice, [rows, quant_blocks], whose norm with `eps` was left for
// later (deferred_norm.h).
// Grid: stored rows / 16, block 64 to 256; for _wide_*, stored rows / 32, block kInt8WideThreads.
#define RF_GEMM_INT8(name, Format, kMostRows, kRowWaves, kMostKWaves, bounds)                 \
  extern "C" __global__ __launch_bounds__ bounds void rf_gemm_int8_##name(                    \
      const uint8_t* __restrict__ weight, const int8_t* __restrict__ q,                       \
      const rf::ActScale* __restrict__ scale, const float* __restrict__ bias, float* out,     \
      rf::half* out_half, int rows, int slices, int out_features, int quant_blocks,           \
      int activation, const float* __restrict__ squares, float eps) {                         \
    rf::gemm_int8<rf::Format, kMostRows, kRowWaves, kMostKWaves>({weight,                     \
                                                                  q,                          \
                                                                  scale,                      \
                                                                  {squares, eps},             \
                                                                  rows,                       \
                                                                  slices,                     \
                                                                  quant_blocks,               \
                                                                  {out_features, activation}, \
                                                                  {bias, out, out_half}});    \
  }
#define RF_GEMM_INT8_OF(name, Format, ...)                                                  \
  RF_GEMM_INT8(name, Format, 8, 1, rf::kInt8Waves, RF_INT8_BOUNDS)                          \
  RF_GEMM_INT8(wide_##name##_r8, Format, 8, 2, rf::kInt8WideWaves / 2, RF_INT8_WIDE_BOUNDS) \
  RF_GEMM_INT8(wide_##name##_r16, Format, 16, 2, rf::kInt8WideWaves / 2, RF_INT8_WIDE_BOUNDS)
RF_FORMATS(RF_GEMM_INT8_OF)
