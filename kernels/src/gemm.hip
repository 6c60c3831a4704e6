// y = x W^T for many rows of x: the linear layers of prefill, and of decode steps of many users.
//
// Bound by the matrix instructions once there are some hundred rows. A block computes kTileRows x
// 128 of y. Weights are dequantised to halves when they enter LDS, so that each block does it once
// for all of its rows. LDS holds two tiles of K: while the waves multiply one, the block brings
// the next. Up to 32 rows leave quantised weights out of LDS where they can (gemm_direct.h).
// Compiled once per format.
#include "rf/gemm_block.h"
#include "rf/gemm_direct.h"
#include "rf/gemm_tiles.h"
#include "rf/groups.h"

namespace rf {

inline constexpr int kGemmWaves = Mma::kWideTiles || kWave == 64 ? 4 : 8;
inline constexpr int kGemmThreads = kGemmWaves * kWave;

// The waves of a block share the weights of a step through LDS.
template <class Format, int kTileRows>
class Gemm {
 public:
  static __device__ __forceinline__ void run(const GemmArguments& arguments) {
    __shared__ Lds lds;
    const HalfTile x_tile[2] = {{lds.tiles.x[0]}, {lds.tiles.x[1]}};
    const HalfTile w_tile[2] = {{lds.tiles.w[0]}, {lds.tiles.w[1]}};

    const int stored_rows = arguments.outputs.stored_rows();
    const int first_column = blockIdx.y * kTileColumns;
    const int begin = blockIdx.z * arguments.split_quant_blocks;
    const int end = min(begin + arguments.split_quant_blocks, arguments.quant_blocks);

    const int w_row = threadIdx.x % kTileColumns;
    const int w_stored_row = min(first_column + w_row, stored_rows - 1);
    WeightRow<Format, kGemmThreads / kTileColumns> weights(
        Planes(arguments.weight, stored_rows, w_stored_row), arguments.quant_blocks,
        uniform(threadIdx.x / kTileColumns));
    ActivationTile<kTileRows, kGemmThreads> x(arguments.x, arguments.sources, arguments.first_row,
                                              arguments.rows, arguments.quant_blocks);

    weights.load(begin);
    x.start(begin, x_tile[0]);
    weights.template put<0>(begin, w_tile[0], w_row);
    x.finish(x_tile[0]);
    if constexpr (kQuantBlocks == 1) weights.load(begin + 1);
    lds_barrier();

    Accumulators sums{};
    // Two steps at a time, so that buffers and quant blocks of a chunk are known to the compiler.
    for (int quant_block = begin; quant_block < end; quant_block += 2) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int next = quant_block + odd + 1;
        if (next > end) break;
        if (next < end) x.start(next, x_tile[1 - odd]);
        multiply(sums, x_tile[odd], w_tile[odd]);
        if (next < end) {
          if (odd == 0) {
            weights.template put<kQuantBlocks - 1>(next, w_tile[1], w_row);
          } else {
            weights.template put<0>(next, w_tile[0], w_row);
          }
          x.finish(x_tile[1 - odd]);
          if (kQuantBlocks == 1 || odd == 0) weights.load(next + 1);
        }
        lds_barrier();
      }
    }
    Block::store(sums, lds.staged, arguments, first_column);
  }

 private:
  static constexpr int kQuantBlocks = WeightRow<Format, 1>::kQuantBlocks;
  using Block = GemmBlock<kTileRows, kGemmWaves, Mma::kWideTiles && kTileRows >= 64 ? 2 : 4>;
  using Accumulators = Block::Accumulators;

  union Lds {
    struct {
      U4 x[2][kTileRows * kTileChunks];
      U4 w[2][kTileColumns * kTileChunks];
    } tiles;
    Block::Staged staged;
  };

  static __device__ __forceinline__ void multiply(Accumulators& sums, HalfTile x, HalfTile w) {
    // Without matrix instructions a step needs many registers: those of one step at a time.
    constexpr int kStepsAtOnce = Mma::kStepChunks == 1 ? 1 : kTileChunks;
#pragma unroll kStepsAtOnce
    for (int chunk = 0; chunk < kTileChunks; chunk += Mma::kStepChunks) {
      decltype(Mma::load_b(w, 0, 0)) b[Block::kColumnTiles];
#pragma unroll
      for (int j = 0; j < Block::kColumnTiles; ++j)
        b[j] = Mma::load_b(w, Block::wave_column() + 16 * j, chunk);
#pragma unroll
      for (int i = 0; i < Block::kRowTiles; ++i) {
        const auto a = Mma::load_a(x, Block::wave_row() + 16 * i, chunk);
#pragma unroll
        for (int j = 0; j < Block::kColumnTiles; ++j) Mma::multiply(sums[i][j], a, b[j]);
      }
    }
  }
};

template <class Format, int kTileRows>
inline constexpr bool kIsDirect = kTileRows == 32 && Mma::kDirectWaves > 0 && Quantised<Format>;
template <class Format, int kTileRows>
inline constexpr int kThreadsFor =
    (kIsDirect<Format, kTileRows> ? Mma::kDirectWaves : kGemmWaves) * kWave;

template <class Format, int kTileRows>
__device__ __forceinline__ void gemm(const GemmArguments& arguments) {
  prepare<Format>();
  if constexpr (kIsDirect<Format, kTileRows>) {
    direct_gemm<Format>(arguments);
  } else {
    Gemm<Format, kTileRows>::run(arguments);
  }
}

// Rows in groups, each of which is multiplied with an expert's matrix: groups.h.
struct Groups {
  const GroupTile* tiles;  // of each blockIdx.x, or null: all rows have the one matrix
  int64_t expert_bytes;    // from one matrix to the next
};

// Makes the arguments those of the block's tile. Returns whether there is anything to do.
template <int kTileRows>
__device__ __forceinline__ bool begin_tile(GemmArguments& arguments, const Groups& groups) {
  arguments.first_row = blockIdx.x * kTileRows;
  if (!groups.tiles) return true;
  const GroupTile tile = groups.tiles[blockIdx.x];
  const int64_t first_bias = static_cast<int64_t>(tile.expert) * arguments.outputs.out_features;
  arguments.weight += tile.expert * groups.expert_bytes;
  arguments.first_row = tile.first;
  arguments.rows = tile.end;
  if (arguments.result.bias) arguments.result.bias += first_bias;
  if (arguments.up_bias) arguments.up_bias += first_bias;
  return tile.first < tile.end;
}

}  // namespace rf

// weight: a matrix of weights.h. x: halves [rows, 32 * quant_blocks]. With partial null, writes out
// (f32) and out_half, those that are not null, [rows, out_features] = x @ weight.T, gated if
// `activation` says so (gate.h). bias [out_features], if not null, is added to the product; of a
// gated layer, to the gate, and up_bias to what it multiplies. Otherwise K is split into pieces of
// split_quant_blocks (a multiple of 8), and rf_gemm_sum adds up the pieces.
// Grid: (ceil(rows / tile rows), ceil(stored rows / 128), splits), block: the most threads that the
// kernel is compiled for.
// With `tiles` (groups.h), weight is the matrices of all experts, expert_bytes each, and biases are
// [experts, out_features]. Rows are sorted by expert then, and multiplied from rows `sources` of x,
// or from their own if that is null. Grid: as many tiles in the place of those of rows; K whole.
#define RF_GEMM(name, Format, kTileRows)                                                        \
  extern "C" __global__ __launch_bounds__((rf::kThreadsFor<rf::Format, kTileRows>)) void        \
      rf_gemm_##name##_m##kTileRows(                                                            \
          const uint8_t* __restrict__ weight, const rf::half* __restrict__ x,                   \
          const rf::GroupTile* __restrict__ tiles, const int32_t* __restrict__ sources,         \
          const float* __restrict__ bias, const float* __restrict__ up_bias, float* out,        \
          rf::half* out_half, float* partial, int64_t expert_bytes, int rows, int out_features, \
          int quant_blocks, int activation, int split_quant_blocks) {                           \
    rf::GemmArguments arguments{weight,                                                         \
                                x,                                                              \
                                sources,                                                        \
                                0,                                                              \
                                rows,                                                           \
                                quant_blocks,                                                   \
                                {out_features, activation},                                     \
                                up_bias,                                                        \
                                {bias, out, out_half},                                          \
                                partial,                                                        \
                                split_quant_blocks};                                            \
    if (!rf::begin_tile<kTileRows>(arguments, {tiles, expert_bytes})) return;                   \
    rf::gemm<rf::Format, kTileRows>(arguments);                                                 \
  }
#define RF_GEMM_OF(name, Format, ...) \
  RF_GEMM(name, Format, 32)           \
  RF_GEMM(name, Format, 64)           \
  RF_GEMM(name, Format, 128)
RF_FORMATS(RF_GEMM_OF)
