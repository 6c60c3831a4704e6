// As gemv_float.hip, and then what rf_add_rms_norm does with the product, by the last block to
// finish: one launch less.
#include "rf/gemv/gemv_float.h"
#include "rf/norms/norm_tail.h"

// As rf_gemv_<format>_r<rows> of gemv_float.hip; residual and what follows as of
// rf_gemv_norm_r<rows>.
#define RF_GEMV_NORM(name, Format, kRows)                                                        \
  extern "C" __global__ __launch_bounds__(rf::kGemvThreads) void rf_gemv_norm_##name##_r##kRows( \
      const uint8_t* __restrict__ weight, const float* __restrict__ x,                           \
      const float* __restrict__ bias, float* out, int rows, int out_features, int quant_blocks,  \
      uint32_t* arrived, float* residual, const float* __restrict__ post_weight,                 \
      const float* __restrict__ scale_of_sum, const float* __restrict__ norm_weight,             \
      float* normed_f32, rf::half* normed_f16, int8_t* normed_q, rf::ActScale* normed_q_scale,   \
      int32_t normed_q_lo_offset, float* squares, float eps) {                                   \
    rf::gemv_float<rf::Format, kRows>(weight, {x, rows, quant_blocks},                           \
                                      {out_features, rf::kNotGated}, {bias, out, nullptr});      \
    const rf::NormTail tail{                                                                     \
        arrived,     residual,                                                                   \
        post_weight, scale_of_sum,                                                               \
        norm_weight, {normed_f32, normed_f16, normed_q, normed_q_scale, normed_q_lo_offset},     \
        squares,     out_features,                                                               \
        eps};                                                                                    \
    tail.finish<kRows>(out, rows);                                                               \
  }

#define RF_GEMV_NORM_OF(name, Format, ...) \
  RF_GEMV_NORM(name, Format, 1)            \
  RF_GEMV_NORM(name, Format, 2)            \
  RF_GEMV_NORM(name, Format, 4)            \
  RF_GEMV_NORM(name, Format, 8)
RF_FORMATS(RF_GEMV_NORM_OF)
