// As gemv.hip for gate and up, and then what rf_quantize_act does with the result: one launch less.
// For all formats of a group at once, as gemv_mixed.hip.
#include "rf/gemv/gemv_formats.h"
#include "rf/gemv/gemv_gated.h"

namespace rf {

template <int kRows, class X>
__device__ __forceinline__ void gemv_gated(const uint8_t* weight, int format, X& x,
                                           const Outputs& outputs, const ActOutput& out) {
  __shared__ GatedParts<kRows> parts;
  const OneGatedTeam teams;
  const int block = static_cast<int>(blockIdx.x);
#define RF_CASE(number, Format) \
  case number: gated_sums<Format>(weight, x, outputs, teams, block, parts); break;
  switch (format) { RF_FORMAT_NUMBERS(RF_CASE) }
#undef RF_CASE
  gated_finish(parts, x.rows, outputs, out, OneGatedTeam::waves(), block, 0);
}

}  // namespace rf

// As rf_gemv_<format>_r<rows> of a gated layer without a bias, where `format` is the number of the
// format; out: [rows, out_features] in the forms that are not null. out_features is a multiple of
// 32. Grid: out_features / 32.
#define RF_GEMV_GATED(kRows)                                                                   \
  extern "C" __global__ __launch_bounds__(rf::kGemvThreads) void RF_OF_GROUP(                  \
      rf_gemv_gated_r##kRows)(const uint8_t* RF_EARLY weight, const int8_t* __restrict__ q,    \
                              const rf::ActScale* __restrict__ scale, float* out_f32,          \
                              rf::half* out_f16, int8_t* out_q, rf::ActScale* out_q_scale,     \
                              int32_t out_q_lo_offset, int rows, int slices, int out_features, \
                              int quant_blocks, int activation, int format) {                  \
    const rf::Activations x{q, scale, rows, slices, quant_blocks};                             \
    rf::gemv_gated<kRows>(weight, format, x, {out_features, activation},                       \
                          {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset});            \
  }
RF_GEMV_GATED(1)
RF_GEMV_GATED(2)
RF_GEMV_GATED(4)
#if RF_IS_FIRST_GROUP  // see gemv_formats.h
RF_GEMV_GATED(8)
#endif

// The same for one row, of one slice, whose norm was left for this launch. squares, eps: see
// deferred_norm.h.
extern "C" __global__ __launch_bounds__(rf::kGemvThreads, rf::kGatedBlocks) void RF_OF_GROUP(
    rf_gemv_deferred_gated)(const uint8_t* RF_EARLY weight, const int8_t* __restrict__ q,
                            const rf::ActScale* __restrict__ scale, float* out_f32,
                            rf::half* out_f16, int8_t* out_q, rf::ActScale* out_q_scale,
                            int32_t out_q_lo_offset, int out_features, int quant_blocks,
                            int activation, int format, const float* __restrict__ squares,
                            float eps) {
  rf::NormedActivations x{{q, scale, 1, 1, quant_blocks}, squares, eps};
  rf::gemv_gated<1>(weight, format, x, {out_features, activation},
                    {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset});
}
