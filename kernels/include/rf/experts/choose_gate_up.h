// Gate and up of the experts of a token, which complete the norm of its row (deferred_norm.h) and
// choose the experts by sums of the router's logits (logit_sums.h).
#pragma once

#include "rf/experts/experts_gemv.h"
#include "rf/experts/logit_sums.h"
#include "rf/experts/route.h"
#include "rf/gemv/deferred_norm.h"

namespace rf {

// The logits of a row whose factor is known, one of which a thread has asked for.
struct SummedLogits {
  const LogitSum* sums;
  LogitSum own;
  float factor;

  __device__ __forceinline__ float operator()(int expert) const {
    const bool is_own = expert == static_cast<int>(threadIdx.x);
    return logit_of(is_own ? own : sums[expert], factor);
  }
};

// Each block chooses for itself: it would wait longer for one that does. Those behind the last
// columns write what they chose, of which the others need no weights.
template <class Format>
__device__ __forceinline__ void choose_gate_up(const ExpertMatrices& experts, NormedActivations& x,
                                               const RouteRule& rule, const LogitSum* sums,
                                               const Choices& choices, const GateUpOutputs& to) {
  __shared__ RouteChoice::Lds lds;
  RouteChoice choice(lds, rule);
  const int rank = static_cast<int>(blockIdx.x);
  const LogitSum own = static_cast<int>(threadIdx.x) < rule.experts ? sums[threadIdx.x] : 0;
  x.find_factor();
  const SummedLogits logits{sums, own, x.factor};
  if (blockIdx.y == gridDim.y - 1) {
    if (rank == 0) choice.run(logits, choices);
    return;
  }
  const int expert = uniform(choice.only(logits, rank));
  if (expert == kElsewhere) return;
  const Outputs stored = to.stored();
  const GateUpTile tile(static_cast<int>(blockIdx.y), stored);
  Format rows[kGroups];
  expert_rows(experts, expert, stored, x.quant_blocks, tile, rows);
  const int first_quant_blocks[1] = {0};
  float found[1][kGroups] = {};
  gemv_dot(rows, x, first_quant_blocks, tile.first_piece(), tile.piece_step(), found,
           [] { prepare<Format>(); });
  let_next_begin();
  to.finish(tile, found[0], expert, rank);
}

}  // namespace rf

// As rf_experts_gate_up_<name>_s1, of one row, whose scale lacks the factor of its norm
// (deferred_norm.h), with what rf_route_choose makes of the logits that logit_sums, int64 [experts
// + weighs_shared], are with that factor: chosen, weights and what is not named here are as there.
// kBlocks: how many blocks are to run at once on a multiprocessor of NVIDIA. Grid: as for
// rf_experts_gate_up, but for one more in y, block 256, and at least as many as experts.
#define RF_CHOOSE_GATE_UP(kernel, Format, kBlocks)                                                 \
  extern "C" __global__ __launch_bounds__(rf::kGemvThreads, kBlocks) void kernel(                  \
      const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,                      \
      const int8_t* __restrict__ q, const rf::ActScale* __restrict__ scale,                        \
      const float* __restrict__ gate_bias, const float* __restrict__ up_bias, float* out_f32,      \
      rf::half* out_f16, int8_t* out_q, rf::ActScale* out_q_scale, int32_t out_q_lo_offset,        \
      int64_t expert_bytes, int out_features, int quant_blocks, int activation,                    \
      const float* __restrict__ squares, float eps, const int64_t* __restrict__ logit_sums,        \
      const float* __restrict__ bias, const float* __restrict__ selection_bias,                    \
      const float* __restrict__ weight_scale, int32_t* chosen, float* weights, float* shares,      \
      int experts, int num_chosen, int function, int groups, int kept_groups, int normalised,      \
      float factor, int first_own, int num_own, int num_shared, int weighs_shared) {               \
    rf::NormedActivations x{{q, scale, 1, 1, quant_blocks}, squares, eps};                         \
    const rf::RouteRule rule{bias,      selection_bias, weight_scale, experts,         num_chosen, \
                             function,  groups,         kept_groups,  normalised != 0, factor,     \
                             first_own, num_own,        num_shared,   weighs_shared};              \
    rf::choose_gate_up<rf::Format>({weight, places, expert_bytes}, x, rule, logit_sums,            \
                                   {chosen, weights, shares},                                      \
                                   {{out_features, activation},                                    \
                                    gate_bias,                                                     \
                                    up_bias,                                                       \
                                    {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}});     \
  }
