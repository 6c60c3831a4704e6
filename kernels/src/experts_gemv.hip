// Experts for a few tokens, with quantised matrices: each pair of a token and one of its experts
// reads that expert's rows as gemv.hip does. Tokens with the same expert read it again, mostly from
// the cache: blocks of the same rows of all pairs follow each other.
#include "rf/experts_gemv.h"

namespace rf {

template <class Format, int kSlices>
__device__ __forceinline__ void experts_gate_up(const ExpertMatrices& experts, const Activations& x,
                                                const Chosen& chosen, const GateUpOutputs& to) {
  const Outputs stored = to.stored();
  const GateUpTile tile(blockIdx.y, stored);
  const int64_t pair = blockIdx.x;
  const int expert = chosen.expert[pair];
  if (expert == kElsewhere) return;
  Format rows[kGroups];
  expert_rows(experts, expert, stored, x.quant_blocks, tile, rows);
  int first_quant_blocks[kSlices];
  find_slices(x, pair / chosen.num_chosen, first_quant_blocks);
  float sums[kSlices][kGroups] = {};
  gemv_dot(rows, x, first_quant_blocks, tile.first_piece(), tile.piece_step(), sums,
           [] { prepare<Format>(); });
  float sum[1][kGroups];
  sum_of_slices(sums, sum);
  to.finish(tile, sum[0], expert, pair);
}

template <class Format, int kSlices>
__device__ __forceinline__ void experts_down(const ExpertMatrices& experts, const Activations& x,
                                             const Chosen& chosen, const DownOutputs& to) {
  const GemvTile<1, kDownThreads> tile(blockIdx.y);
  const int64_t token = blockIdx.x;
  const int waves = static_cast<int>(blockDim.x) / kWave;
  float mixed[1][kGroups] = {};
  mix_experts<Format, kSlices>(experts, x, chosen, to.outputs, token, tile,
                               ExpertWaves::of(chosen.num_chosen, waves, wave_id()), mixed[0]);
  to.finish(tile, mixed, chosen, token);
}

}  // namespace rf

// weight, places: the matrices of experts (expert_matrices.h) of `expert_bytes` each, gate and up
// interleaved. q, scale: an activation [rows, 32 * quant_blocks] of act.h with as many slices as
// the name says. chosen: int32 [rows, num_chosen], or kElsewhere, whose rows of out stay. out:
// [rows * num_chosen, out_features] in the forms that are not null, gated as `activation` says,
// after the biases [experts, out_features], unless those are null. out_features is a multiple
// of 32. Grid: (rows * num_chosen, out_features / 32), block 256 or 512. With kSquaredRelu, the
// matrices are of up alone, without biases, and a block has 64 columns.
#define RF_GATE_UP(name, Format, kSlices)                                                      \
  extern "C" __global__ __launch_bounds__(rf::kGateUpThreads) void                             \
      rf_experts_gate_up_##name##_s##kSlices(                                                  \
          const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,              \
          const int8_t* __restrict__ q, const rf::ActScale* __restrict__ scale,                \
          const int32_t* __restrict__ chosen, const float* __restrict__ gate_bias,             \
          const float* __restrict__ up_bias, float* out_f32, rf::half* out_f16, int8_t* out_q, \
          rf::ActScale* out_q_scale, int32_t out_q_lo_offset, int64_t expert_bytes, int rows,  \
          int num_chosen, int out_features, int quant_blocks, int activation) {                \
    rf::experts_gate_up<rf::Format, kSlices>(                                                  \
        {weight, places, expert_bytes}, {q, scale, rows, kSlices, quant_blocks},               \
        {chosen, nullptr, num_chosen},                                                         \
        {{out_features, activation},                                                           \
         gate_bias,                                                                            \
         up_bias,                                                                              \
         {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}});                            \
  }

// weight, places, chosen, bias: as above, of down. q, scale: an activation [rows * num_chosen, 32 *
// quant_blocks]. weights: f32 [rows, num_chosen]. out: f32 [rows, out_features], the weighted sums.
// Grid: (rows, stored rows / 16), block 128 to 512 as far as the kernel is compiled for that.
#define RF_DOWN(name, Format, kSlices)                                                            \
  extern "C" __global__                                                                           \
  __launch_bounds__(rf::kDownThreads) void rf_experts_down_##name##_s##kSlices(                   \
      const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,                     \
      const int8_t* __restrict__ q, const rf::ActScale* __restrict__ scale,                       \
      const int32_t* __restrict__ chosen, const float* __restrict__ weights,                      \
      const float* __restrict__ bias, float* out, int64_t expert_bytes, int rows, int num_chosen, \
      int out_features, int quant_blocks) {                                                       \
    rf::experts_down<rf::Format, kSlices>(                                                        \
        {weight, places, expert_bytes}, {q, scale, rows * num_chosen, kSlices, quant_blocks},     \
        {chosen, weights, num_chosen}, {{out_features, rf::kNotGated}, bias, out});               \
  }

#define RF_EXPERTS(name, Format, ...) \
  RF_GATE_UP(name, Format, 1)         \
  RF_GATE_UP(name, Format, 2)         \
  RF_DOWN(name, Format, 1)            \
  RF_DOWN(name, Format, 2)
RF_FORMATS(RF_EXPERTS)
