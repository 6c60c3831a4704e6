// Gate and up of the experts of few tokens, which choose the experts by the router's logits, and
// may complete the norm of one row (deferred_norm.h).
#pragma once

#include "rf/experts/experts_gemv.h"
#include "rf/experts/route.h"
#include "rf/gemv/deferred_norm.h"

namespace rf {

// Each block chooses for itself: it would wait longer for one that does. Those behind the last
// columns write what they chose, of which the others need no weights.
template <class Format>
__device__ __forceinline__ void choose_gate_up(const ExpertMatrices& experts, NormedActivations& x,
                                               const RouteRule& rule, const float* logits,
                                               int32_t* chosen, float* weights,
                                               const GateUpOutputs& to) {
  __shared__ RouteChoice::Lds lds;
  RouteChoice choice(lds, rule);
  const int64_t pair = blockIdx.x;
  const int num_pairs = rule.num_pairs();
  const int64_t token = pair / num_pairs;
  const int rank = static_cast<int>(pair - token * num_pairs);
  logits += token * rule.num_logits();
  if (blockIdx.y == gridDim.y - 1) {
    if (rank == 0) choice.run(logits, chosen + token * num_pairs, weights + token * num_pairs);
    return;
  }
  const int expert = uniform(choice.only(logits, rank));
  if (expert == kElsewhere) return;
  const Outputs stored = to.stored();
  const GateUpTile tile(static_cast<int>(blockIdx.y), stored);
  Format rows[kGroups];
  expert_rows(experts, expert, stored, x.quant_blocks, tile, rows);
  const int first_quant_blocks[1] = {static_cast<int>(token) * x.quant_blocks};
  float sums[1][kGroups] = {};
  gemv_dot(rows, x, first_quant_blocks, tile.first_piece(), tile.piece_step(), sums, [&] {
    if (x.squares) x.find_factor();
    prepare<Format>();
  });
  if (x.rows == 1) let_next_begin();
  to.finish(tile, sums[0], expert, pair);
}

}  // namespace rf

// As rf_experts_gate_up_<name>_s1, of few rows, with what rf_route_choose makes of their logits,
// f32 [rows, experts + weighs_shared]: chosen, weights and what is not named here are as there.
// scale: where squares is not null, there is one row and this lacks the factor of its norm
// (deferred_norm.h). kBlocks: how many blocks are to run at once on a multiprocessor of NVIDIA.
// Grid: as there, but for one more in y, block 256, and at least as many as experts.
#define RF_CHOOSE_GATE_UP(kernel, Format, kBlocks)                                                 \
  extern "C" __global__ __launch_bounds__(rf::kGemvThreads, kBlocks) void kernel(                  \
      const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,                      \
      const int8_t* __restrict__ q, const rf::ActScale* __restrict__ scale,                        \
      const float* __restrict__ gate_bias, const float* __restrict__ up_bias, float* out_f32,      \
      rf::half* out_f16, int8_t* out_q, rf::ActScale* out_q_scale, int32_t out_q_lo_offset,        \
      int64_t expert_bytes, int rows, int out_features, int quant_blocks, int activation,          \
      const float* __restrict__ squares, float eps, const float* __restrict__ logits,              \
      const float* __restrict__ bias, const float* __restrict__ selection_bias,                    \
      const float* __restrict__ weight_scale, int32_t* chosen, float* weights, int experts,        \
      int num_chosen, int function, int groups, int kept_groups, int normalised, float factor,     \
      int first_own, int num_own, int num_shared, int weighs_shared) {                             \
    rf::NormedActivations x{{q, scale, rows, 1, quant_blocks}, squares, eps, 1.0f};                \
    const rf::RouteRule rule{bias,      selection_bias, weight_scale, experts,         num_chosen, \
                             function,  groups,         kept_groups,  normalised != 0, factor,     \
                             first_own, num_own,        num_shared,   weighs_shared};              \
    rf::choose_gate_up<rf::Format>({weight, places, expert_bytes}, x, rule, logits, chosen,        \
                                   weights,                                                        \
                                   {{out_features, activation},                                    \
                                    gate_bias,                                                     \
                                    up_bias,                                                       \
                                    {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}});     \
  }
