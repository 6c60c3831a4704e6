// GEMV with the matrices of a token's experts: what its kernels share.
#pragma once

#include "rf/experts/experts.h"
#include "rf/gemv/gemv_dot.h"

namespace rf {

// Where the slices of a row of activations begin.
template <int kSlices>
__device__ __forceinline__ void find_slices(const Activations& x, int64_t row,
                                            int (&first_quant_blocks)[kSlices]) {
  for (int m = 0; m < kSlices; ++m) {
    first_quant_blocks[m] = static_cast<int>((m * x.rows + row) * x.quant_blocks);
  }
}

template <int kSlices>
__device__ __forceinline__ void sum_of_slices(const float (&sums)[kSlices][kGroups],
                                              float (&sum)[1][kGroups]) {
  for (int j = 0; j < kGroups; ++j) {
    sum[0][j] = sums[0][j];
    for (int m = 1; m < kSlices; ++m) sum[0][j] += sums[m][j];
  }
}

// Adds to `mixed` what a wave finds for a tile of the weighted sum of what a token's experts make.
template <class Format, int kSlices, class Tile, class Choice>
__device__ __forceinline__ void mix_experts(const ExpertMatrices& experts, const Activations& x,
                                            const Choice& chosen, const Outputs& outputs,
                                            int64_t token, const Tile& tile,
                                            const ExpertWaves& waves, float (&mixed)[kGroups]) {
  prepare<Format>();
  for (int i = waves.first_expert(); i < chosen.num_chosen; i += waves.at_once) {
    const int64_t pair = token * chosen.num_chosen + i;
    const int expert = chosen.expert_of(pair);
    if (expert == kElsewhere) continue;
    Format rows[kGroups];
    expert_rows(experts, expert, outputs, x.quant_blocks, tile, rows);
    int first_quant_blocks[kSlices];
    find_slices(x, pair, first_quant_blocks);
    float sums[kSlices][kGroups] = {};
    gemv_dot(rows, x, first_quant_blocks, waves.first_piece(), waves.piece_step(), sums, [] {});
    float sum[1][kGroups];
    sum_of_slices(sums, sum);
    for (int j = 0; j < kGroups; ++j) mixed[j] += chosen.weight_of(pair) * sum[0][j];
  }
}

}  // namespace rf
