// Experts for a few tokens, with quantised matrices: each pair of a token and one of its experts
// reads that expert's rows as gemv.hip does. Tokens with the same expert read it again, mostly from
// the cache: blocks of the same rows of all pairs follow each other. Of gate and up, two of them
// may share what was read.
#include "rf/experts/experts_gemv.h"

namespace rf {

// Whether pairs with the same expert go together, two at a time, where there are so many tokens.
// For that a format costs more to unpack than registers for a second row do: it says so.
template <class Format>
inline constexpr bool kHasCouples = false;
template <class Format>
  requires requires { Format::kHasCouples; }
inline constexpr bool kHasCouples<Format> = Format::kHasCouples;
inline constexpr int kLeastCoupled = 4;

// Whether a block computes a pair, and which one besides; of those with the same expert, the first
// and the second, the third and the fourth and so on go together.
struct Couple {
  bool is_first;
  int other;  // none: -1
};

// Whole waves call this, each for itself.
__device__ __forceinline__ Couple couple_of(const int32_t* chosen, int pairs, int pair,
                                            int expert) {
  int before = 0;
  for (int first = 0; first < pairs; first += kWave) {
    const int i = first + lane_id();
    const LaneMask same = ballot(i < pairs && chosen[i] == expert);
    if (first + kWave <= pair) {
      before += __builtin_popcountll(same);
      continue;
    }
    LaneMask above = same;
    if (first <= pair) {
      const LaneMask own = LaneMask{1} << (pair - first);
      before += __builtin_popcountll(same & (own - 1));
      if (before % 2 == 1) return {false, -1};
      above &= ~(own | (own - 1));
    }
    if (above) return {true, first + __builtin_ctzll(above)};
  }
  return {true, -1};
}

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
  if constexpr (kHasCouples<Format> && kSlices == 1) {
    if (x.rows >= kLeastCoupled) {
      const int pairs = x.rows * chosen.num_chosen;
      const Couple couple = couple_of(chosen.expert, pairs, static_cast<int>(pair), expert);
      if (!couple.is_first) return;
      if (couple.other >= 0) {
        const int tokens[2] = {static_cast<int>(pair) / chosen.num_chosen,
                               couple.other / chosen.num_chosen};
        const int first[2] = {tokens[0] * x.quant_blocks, tokens[1] * x.quant_blocks};
        float sums[2][kGroups] = {};
        gemv_dot(rows, x, first, tile.first_piece(), tile.piece_step(), sums,
                 [] { prepare<Format>(); });
        to.finish(tile, sums[0], expert, pair);
        __syncthreads();
        to.finish(tile, sums[1], expert, couple.other);
        return;
      }
    }
  }
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
