// Products of few rows of each expert whose rows stay in LDS, on the matrix instructions of Hopper
// GPUs: what experts_gemm.h and experts_gated_gemm.h share.
//
// A multiprocessor has one block. The rows of an expert stay in LDS while the block goes through
// its matrix: nothing but weights is on the way then, and four waves wait for no others. Blocks
// that end after 128 rows of the matrix (gemm_few_rows.h) would end here when they have hardly
// begun, and bring the same x for each (docs/benchmarks/experts.md).
#pragma once

#include "rf/experts/grouped_rows.h"
#include "rf/experts/tile_shares.h"
#include "rf/gemm/few_rows_product.h"
#include "rf/hidden.h"

namespace rf {

inline constexpr int kExpertsGemmColumns = 256;  // stored rows, at once
inline constexpr int kExpertsGemmWaves = kExpertsGemmColumns / 16;

#if RF_WARPGROUPS

// Makes the arguments those of the tile that this block has a share in, and says which. Returns
// whether there is anything to do.
__device__ __forceinline__ bool begin_share(GemmArguments& arguments, const Groups& groups,
                                            int multiprocessors, TileShare& share) {
  wait_for_previous(groups.tiles, groups.experts.places, arguments.sources, arguments.x);
  const int block = blockIdx.x;
  const int places = static_cast<int>(gridDim.x) - kShareRounds * multiprocessors;
  const int tiles = groups.tiles[block < places ? block : 0].count;  // most often of its own tile
  const int stored_rows = arguments.outputs.stored_rows();
  const int most_parts = (stored_rows + kExpertsGemmColumns - 1) / kExpertsGemmColumns;
  share = share_of(block, tiles, multiprocessors, most_parts);
  return share.tile < tiles && begin_group(arguments, groups, share.tile);
}

// Zero, in a register of each lane. The assembler does not know that, nor that lanes have the same:
// it would put what follows from it in uniform registers, which half of the instructions cannot
// read.
__device__ __forceinline__ uint32_t hidden_zero() {
  uint32_t lanes_before = 0;
#if RF_NVIDIA
  asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(lanes_before));
#endif
  return lanes_before >> 31;
}

// All of x, for rows of up to kMostQuantBlocks quant blocks, in tiles of a FewRowsProduct.
template <class Product, int kMostQuantBlocks>
class HeldRows {
  static constexpr int kTiles = kMostQuantBlocks / kStepQuantBlocks * Product::kTiles;
  alignas(warpgroup::kPlainAlignment) uint8_t tiles_[kTiles * Product::kTileBytes];

  __device__ __forceinline__ U4* tile(int index) {
    return reinterpret_cast<U4*>(tiles_) + index * Product::Activations::kItems;
  }

 public:
  __device__ __forceinline__ const U4* tile(int step, int index) {
    return tile(step * Product::kTiles + index);
  }

  // Brings that many steps of K of the rows of the block. Several tiles are on their way at once.
  __device__ __forceinline__ void bring(const GemmArguments& arguments, int steps) {
    constexpr int kAhead = 4;
    const int tiles = steps * Product::kTiles;
    const typename Product::Activations x(arguments, arguments.quant_blocks);
#pragma unroll 1
    for (int first = 0; first < tiles; first += kAhead) {
      typename Product::Activations::Loaded loaded[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int next = first + i;
        loaded[i] = x.load(next / Product::kTiles * kStepQuantBlocks +
                           next % Product::kTiles * Product::kUnits);
      }
      issue_loads();
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i < tiles) x.put(loaded[i], tile(first + i));
      }
    }
    warpgroup::publish();
    lds_barrier();
  }
};

#endif

}  // namespace rf
