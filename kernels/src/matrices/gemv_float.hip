// y = W x for a few rows of x, with W in a format of plain numbers.
#include "rf/gemv/gemv_float.h"

// As rf_gemv_<format>_r<rows> of gemv.hip, with x f32 [rows, 32 * quant_blocks].
#define RF_GEMV(name, Format, kRows)                                                               \
  extern "C" __global__ __launch_bounds__(rf::kGemvThreads) void rf_gemv_##name##_r##kRows(        \
      const uint8_t* __restrict__ weight, const float* __restrict__ x,                             \
      const float* __restrict__ bias, float* out, int rows, int out_features, int quant_blocks,    \
      int activation) {                                                                            \
    rf::gemv_float<rf::Format, kRows>(weight, {x, rows, quant_blocks}, {out_features, activation}, \
                                      {bias, out, nullptr});                                       \
  }

#define RF_GEMV_OF(name, Format, ...) \
  RF_GEMV(name, Format, 1)            \
  RF_GEMV(name, Format, 2)            \
  RF_GEMV(name, Format, 4)            \
  RF_GEMV(name, Format, 8)
RF_FORMATS(RF_GEMV_OF)
