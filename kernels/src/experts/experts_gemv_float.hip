// Experts for a few tokens, with matrices of plain numbers: as experts_gemv.hip, with float32
// activations.
#include "rf/experts/experts.h"
#include "rf/gemv/gemv_dot_float.h"

namespace rf {

template <class Format>
__device__ __forceinline__ void experts_gate_up(const ExpertMatrices& experts,
                                                const FloatActivations& x, const Chosen& chosen,
                                                const GateUpOutputs& to) {
  const Outputs stored = to.stored();
  const GateUpTile tile(blockIdx.y, stored);
  const int64_t pair = blockIdx.x;
  const int expert = chosen.expert[pair];
  if (expert == kElsewhere) return;
  Format rows[kGroups];
  expert_rows(experts, expert, stored, x.quant_blocks, tile, rows);
  float sums[1][kGroups] = {};
  gemv_dot(rows, x, static_cast<int>(pair / chosen.num_chosen), tile.first_piece(),
           tile.piece_step(), sums);
  to.finish(tile, sums[0], expert, pair);
}

template <class Format>
__device__ __forceinline__ void experts_down(const ExpertMatrices& experts,
                                             const FloatActivations& x, const Chosen& chosen,
                                             const DownOutputs& to) {
  const GemvTile<1, kDownThreads> tile(blockIdx.y);
  const int64_t token = blockIdx.x;
  const ExpertWaves waves =
      ExpertWaves::of(chosen.num_chosen, static_cast<int>(blockDim.x) / kWave, wave_id());
  float mixed[1][kGroups] = {};
  for (int i = waves.first_expert(); i < chosen.num_chosen; i += waves.at_once) {
    const int64_t pair = token * chosen.num_chosen + i;
    const int expert = chosen.expert[pair];
    if (expert == kElsewhere) continue;
    Format rows[kGroups];
    expert_rows(experts, expert, to.outputs, x.quant_blocks, tile, rows);
    float sums[1][kGroups] = {};
    gemv_dot(rows, x, static_cast<int>(pair), waves.first_piece(), waves.piece_step(), sums);
    for (int j = 0; j < kGroups; ++j) mixed[0][j] += chosen.weight[pair] * sums[0][j];
  }
  to.finish(tile, mixed, chosen, token);
}

}  // namespace rf

// As rf_experts_gate_up_<format>_s<slices> of experts_gemv.hip, with x f32 [rows, 32 *
// quant_blocks].
#define RF_GATE_UP(name, Format)                                                                \
  extern "C" __global__ __launch_bounds__(rf::kGateUpThreads) void rf_experts_gate_up_##name(   \
      const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,                   \
      const float* __restrict__ x, const int32_t* __restrict__ chosen,                          \
      const float* __restrict__ gate_bias, const float* __restrict__ up_bias, float* out_f32,   \
      rf::half* out_f16, int8_t* out_q, rf::ActScale* out_q_scale, int32_t out_q_lo_offset,     \
      int64_t expert_bytes, int rows, int num_chosen, int out_features, int quant_blocks,       \
      int activation) {                                                                         \
    rf::experts_gate_up<rf::Format>({weight, places, expert_bytes}, {x, rows, quant_blocks},    \
                                    {chosen, nullptr, num_chosen},                              \
                                    {{out_features, activation},                                \
                                     gate_bias,                                                 \
                                     up_bias,                                                   \
                                     {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}}); \
  }

// As rf_experts_down_<format>_s<slices>, with x f32 [rows * num_chosen, 32 * quant_blocks].
#define RF_DOWN(name, Format)                                                               \
  extern "C" __global__ __launch_bounds__(rf::kDownThreads) void rf_experts_down_##name(    \
      const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,               \
      const float* __restrict__ x, const int32_t* __restrict__ chosen,                      \
      const float* __restrict__ weights, const float* __restrict__ bias, float* out,        \
      int64_t expert_bytes, int rows, int num_chosen, int out_features, int quant_blocks) { \
    rf::experts_down<rf::Format>(                                                           \
        {weight, places, expert_bytes}, {x, rows * num_chosen, quant_blocks},               \
        {chosen, weights, num_chosen}, {{out_features, rf::kNotGated}, bias, out});         \
  }

#define RF_EXPERTS(name, Format, ...) \
  RF_GATE_UP(name, Format)            \
  RF_DOWN(name, Format)
RF_FORMATS(RF_EXPERTS)
