// As gemv.hip, and then what rf_add_rms_norm does with the product, by the last block to finish:
// one launch less. For all formats of a group at once, as gemv_mixed.hip.
#include "rf/gemv/gemv_formats.h"
#include "rf/norms/norm_tail.h"

namespace rf {

template <int kRows>
__device__ __forceinline__ void gemv_norm(const uint8_t* weight, int format, const Activations& x,
                                          const Outputs& outputs, const Result& result,
                                          const NormTail& tail) {
  const int tile = static_cast<int>(blockIdx.x);
  float sums[kRows][kGroups] = {};
  gemv_sums_of(format, weight, x, outputs, tile, sums);
  gemv_finish(sums, x, outputs, tile, result);
  tail.finish<kRows>(result.out, x.rows);
}

}  // namespace rf

// As rf_gemv_<format>_r<rows>, where `format` is the number of the format; residual [rows,
// out_features] += out, and its norm, as of rf_add_rms_norm. arrived: see last_block.h.
// post_weight: of a norm of out before it is added, as of rf_rms_norm, or null.
// scale_of_sum and norm_weight: as of rf_add_rms_norm. squares: scratch, [rows, out_features / 32].
#define RF_GEMV_NORM(kRows)                                                                    \
  extern "C" __global__ __launch_bounds__(rf::kGemvThreads) void RF_OF_GROUP(                  \
      rf_gemv_norm_r##kRows)(                                                                  \
      const uint8_t* RF_EARLY weight, const int8_t* __restrict__ q,                            \
      const rf::ActScale* __restrict__ scale, const float* __restrict__ bias, float* out,      \
      int rows, int slices, int out_features, int quant_blocks, int format, uint32_t* arrived, \
      float* residual, const float* __restrict__ post_weight,                                  \
      const float* __restrict__ scale_of_sum, const float* __restrict__ norm_weight,           \
      float* normed_f32, rf::half* normed_f16, int8_t* normed_q, rf::ActScale* normed_q_scale, \
      int32_t normed_q_lo_offset, float* squares, float eps) {                                 \
    rf::gemv_norm<rf::kSummedRows<kRows>>(                                                     \
        weight, format, {q, scale, rows, slices, quant_blocks}, {out_features, rf::kNotGated}, \
        {bias, out, nullptr},                                                                  \
        {arrived,                                                                              \
         residual,                                                                             \
         post_weight,                                                                          \
         scale_of_sum,                                                                         \
         norm_weight,                                                                          \
         {normed_f32, normed_f16, normed_q, normed_q_scale, normed_q_lo_offset},               \
         squares,                                                                              \
         out_features,                                                                         \
         eps});                                                                                \
  }
RF_GEMV_NORM(1)
RF_GEMV_NORM(2)
RF_GEMV_NORM(4)
#if RF_IS_FIRST_GROUP  // see gemv_formats.h
RF_GEMV_NORM(8)
#endif
