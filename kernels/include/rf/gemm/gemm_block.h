// The tile of y that a GEMM block computes: how its waves divide it, and how it is written.
#pragma once

#include "rf/linear.h"
#include "rf/mma/mma.h"

namespace rf {

inline constexpr int kTileColumns = 128;
inline constexpr int kTileColumnsBits = 7;
static_assert(kTileColumns == 1 << kTileColumnsBits);

struct GemmArguments {
  const uint8_t* weight;
  const half* x;           // [any, 32 * quant_blocks]
  const int32_t* sources;  // the row of x that row r is multiplied from, or null: r itself
  int first_row;           // of this block's tile
  int rows;                // up to here
  int quant_blocks;
  Outputs outputs;
  const float* up_bias;  // where layers are gated, and result.bias of the gate; added before it
  Result result;
  float* partial;  // [splits, rows, stored rows], or null if one block takes all of K
  int split_quant_blocks;
};

__device__ __forceinline__ void hide([[maybe_unused]] int& value) {
#if RF_AMD
  asm volatile("" : "+s"(value));
#endif
}

// Runs an expression of `arguments` and `factor`, and once more if it is false: are_final(). That K
// is the same then is hidden, as addresses would wait for that case in registers.
#define RF_WITH_RAISED(run)                 \
  if constexpr (!kFlushesHalves) {          \
    constexpr float factor = 1.0f;          \
    run;                                    \
  } else {                                  \
    const GemmArguments& given = arguments; \
    float factor = kRaised;                 \
    _Pragma("unroll 1") while (true) {      \
      GemmArguments arguments = given;      \
      hide(arguments.quant_blocks);         \
      if (run) break;                       \
      factor = 1.0f;                        \
    }                                       \
  }

// The waves of a block form a grid over its tile, kWaveColumns wide. If kTransposed, the
// accumulators hold y^T. kStagedTiles: how many tiles of 16 rows a wave stages at once.
template <int kTileRows, int kWaves, int kWaveColumns, bool kTransposed = false,
          int kStagedTiles = 1>
struct GemmBlock {
  static constexpr int kThreads = kWaves * kWave;
  static constexpr int kWaveRows = kWaves / kWaveColumns;
  static constexpr int kRowTiles = kTileRows / 16 / kWaveRows;
  static constexpr int kColumnTiles = kTileColumns / 16 / kWaveColumns;

  using Accumulators = Mma::Acc[kRowTiles][kColumnTiles];

  // Tiles of 16 rows of each wave, on the way out. The padding keeps the rows of a matrix
  // instruction's result in different banks.
  static constexpr int kOwnRows = 16 * kStagedTiles;
  static constexpr int kStagedRows = kOwnRows * kWaveRows;
  static constexpr int kPadding = kStagedTiles > 1 && kTransposed ? 4 : 8;
  struct Staged {
    float values[kStagedRows][kTileColumns + kPadding];
  };
  static __device__ __forceinline__ int wave_row() {
    return wave_id() / kWaveColumns * (kRowTiles * 16);
  }
  static __device__ __forceinline__ int wave_column() {
    return wave_id() % kWaveColumns * (kColumnTiles * 16);
  }

  // Whether the sums of all waves are finite, or need not be, as activations were not raised. The
  // block is done with the tiles in LDS, where the waves say so.
  using Votes = bool[kWaves];
  static __device__ __forceinline__ bool are_final(const Accumulators& sums, float factor,
                                                   Votes& votes) {
    if constexpr (!kFlushesHalves) return true;
    float zero = 0.0f;  // times what is infinite it is no number
    for (auto& row : sums) {
      for (auto& tile : row) {
        for (int i = 0; i < kAccValues; ++i) zero = fma(tile.value[i], 0.0f, zero);
      }
    }
    const bool own = ballot(zero != 0.0f) == 0;
    if (lane_id() == 0) votes[wave_id()] = own;
    __syncthreads();
    bool all = true;
    for (bool vote : votes) all = all && vote;
    if (uniform(all || factor == 1.0f)) return true;
    __syncthreads();
    return false;
  }

  // Through LDS, as a lane holds a few values of many rows and memory wants whole rows.
  static __device__ __forceinline__ void store(const Accumulators& sums, float factor,
                                               Staged& staged, const GemmArguments& arguments,
                                               int first_column) {
#pragma unroll kTilesInCode
    for (int i = 0; i < kRowTiles; i += kStagedTiles) {
      __syncthreads();
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        const int own = tile % kStagedTiles;
        if (tile - own == i) stage(sums[tile], own, 1.0f / factor, staged);
      }
      __syncthreads();
      store_staged(staged, arguments, arguments.first_row + 16 * i, first_column);
    }
  }

 private:
  // What writes a tile is more code than the product, and took a third of the time to compile a
  // GEMM. So it is there once. Only on an H200 a copy for each tile was measured to be 1% faster.
  static constexpr int kTilesInCode = kHasAsyncCopy ? kRowTiles : 1;

  static __device__ __forceinline__ void stage(const Mma::Acc (&sums)[kColumnTiles], int own,
                                               float scale, Staged& staged) {
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
      for (int v = 0; v < kAccValues; ++v) {
        const int row = kTransposed ? Mma::column(v) : Mma::row(v);
        const int column = kTransposed ? Mma::row(v) : Mma::column(v);
        staged.values[wave_row() / kRowTiles * kStagedTiles + 16 * own + row]
                     [wave_column() + 16 * j + column] = sums[j].value[v] * scale;
      }
    }
  }

  // Row r of `staged` belongs to wave r / kOwnRows of a column of waves.
  static __device__ __forceinline__ void store_staged(const Staged& staged,
                                                      const GemmArguments& arguments, int first_row,
                                                      int first_column) {
    const Outputs& outputs = arguments.outputs;
    const int stored_rows = outputs.stored_rows();
    const bool is_gated = outputs.activation != kNotGated && !arguments.partial;
    const Result& result = arguments.result;
    const int fours_bits = is_gated ? kTileColumnsBits - 3 : kTileColumnsBits - 2;  // of a row
#pragma unroll 1
    for (int item = threadIdx.x; item < kStagedRows << fours_bits; item += kThreads) {
      const int r = item >> fours_bits;
      const int64_t row = first_row + r / kOwnRows * (16 * kRowTiles) + r % kOwnRows;
      const int four = (item - (r << fours_bits)) * 4;
      if (row >= arguments.rows) continue;
      if (is_gated) {
        const int gate = Outputs::gate_row(four);
        const int column = first_column / 2 + four;
        if (column >= outputs.out_features) continue;
        auto gates = load16(&staged.values[r][gate]);
        auto ups = load16(&staged.values[r][gate + kGateRows]);
        if (result.bias) {
          for (int k = 0; k < 4 && column + k < outputs.out_features; ++k) {
            gates[k] += result.bias[column + k];
            ups[k] += arguments.up_bias[column + k];
          }
        }
        Vec<float, 4> values;
        for (int k = 0; k < 4; ++k) values[k] = gated(gates[k], ups[k], outputs.activation);
        const Result unbiased{nullptr, result.out, result.out_half};
        unbiased.store_four(row, column, outputs.out_features, values);
        continue;
      }
      const int column = first_column + four;
      const auto values = load16(&staged.values[r][four]);
      if (arguments.partial && column < stored_rows) {
        const int64_t split_row = static_cast<int64_t>(blockIdx.z) * arguments.rows + row;
        store16(arguments.partial + split_row * stored_rows + column, values);
      } else if (!arguments.partial && column < outputs.out_features) {
        result.store_four(row, column, outputs.out_features, values);
      }
    }
  }
};

}  // namespace rf
