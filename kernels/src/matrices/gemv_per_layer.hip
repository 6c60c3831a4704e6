// As gemv.hip for the gate of a token's other embedding (Gemma 3n and 4), and then what
// rf_gate_per_layer does with it: one launch in place of two. A block makes 32 columns, of two
// tiles after each other. For all formats of a group at once, as gemv_mixed.hip.
#include "rf/gemv/gemv_formats.h"
#include "rf/gemv/gemv_gated.h"

namespace rf {

inline constexpr int kPerLayerTiles = kActBlock / (kGroups * kGroupRows);  // of a block

// The tokens' other embedding, as rf_gate_per_layer has it.
struct OtherEmbedding {
  const float* rows;
  const float* projected;
  int64_t stride;
  float scale;

  __device__ __forceinline__ float at(int m, int column) const {
    const int64_t there = m * stride + column;
    return scale * (rows[there] + projected[there]);
  }
};

template <int kRows>
__device__ __forceinline__ void gemv_per_layer(const uint8_t* weight, int format, Activations& x,
                                               const Outputs& outputs, const OtherEmbedding& other,
                                               const ActOutput& out) {
  __shared__ GatedParts<kRows, kPerLayerTiles> parts;
  const OneGatedTeam teams;
  const int block = static_cast<int>(blockIdx.x), waves = OneGatedTeam::waves();
#define RF_CASE(number, Format) \
  case number: gated_sums<Format>(weight, x, outputs, teams, block, parts); break;
  switch (format) { RF_FORMAT_NUMBERS(RF_CASE) }
#undef RF_CASE
  act_finish(parts, x.rows, outputs.out_features, out, block, 0, [&](int m, int column) {
    const int group = column / kGroupRows;
    const float gate =
        parts.total(group % kPerLayerTiles, m, group / kPerLayerTiles, column % kGroupRows, waves);
    return gated(gate, other.at(m, block * kActBlock + column), kGeluTanh);
  });
}

}  // namespace rf

// out = GELU(x @ weight.T) * scale * (rows + projected), in its form with tanh: what
// rf_gemv_<format>_r<rows> and rf_gate_per_layer make, where `format` is the number of the format.
// out_features is a multiple of 32. Grid: out_features / 32.
#define RF_GEMV_PER_LAYER(kRows)                                                                 \
  extern "C" __global__ __launch_bounds__(rf::kGemvThreads) void RF_OF_GROUP(                    \
      rf_gemv_per_layer_r##kRows)(                                                               \
      const uint8_t* __restrict__ weight, const int8_t* __restrict__ q,                          \
      const rf::ActScale* __restrict__ scale, int rows, int slices, int out_features,            \
      int quant_blocks, int format, const float* __restrict__ embedded,                          \
      const float* __restrict__ projected, int64_t stride, float factor, float* out_f32,         \
      rf::half* out_f16, int8_t* out_q, rf::ActScale* out_q_scale, int32_t out_q_lo_offset) {    \
    rf::Activations x{q, scale, rows, slices, quant_blocks};                                     \
    rf::gemv_per_layer<rf::kSummedRows<kRows>>(                                                  \
        weight, format, x, {out_features, rf::kNotGated}, {embedded, projected, stride, factor}, \
        {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset});                                \
  }
RF_GEMV_PER_LAYER(1)
RF_GEMV_PER_LAYER(2)
RF_GEMV_PER_LAYER(4)
#if RF_IS_FIRST_GROUP  // see gemv_formats.h
RF_GEMV_PER_LAYER(8)
#endif
