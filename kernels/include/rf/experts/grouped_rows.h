// Products of rows in groups, each of which is multiplied with an expert's matrix: groups.h.
#pragma once

#include "rf/experts/expert_matrices.h"
#include "rf/experts/groups.h"
#include "rf/gemm/gemm_block.h"

namespace rf {

struct Groups {
  const GroupTile* tiles;  // null: all rows have the one matrix
  ExpertMatrices experts;
};

// Makes the arguments those of a tile. Returns whether there is anything to do.
__device__ __forceinline__ bool begin_group(GemmArguments& arguments, const Groups& groups,
                                            int index) {
  const GroupTile tile = groups.tiles[index];
  const int64_t first_bias = static_cast<int64_t>(tile.expert) * arguments.outputs.out_features;
  arguments.weight = groups.experts.matrix(tile.expert);
  arguments.first_row = tile.first;
  arguments.rows = tile.end;
  if (arguments.result.bias) arguments.result.bias += first_bias;
  if (arguments.up_bias) arguments.up_bias += first_bias;
  return tile.first < tile.end;
}

}  // namespace rf
