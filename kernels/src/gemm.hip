// y = x W^T for many rows of x: the linear layers of prefill, and of decode steps of many users.
//
// Bound by the matrix instructions once there are some hundred rows. A block computes kTileRows x
// 128 of y. Weights are dequantised to halves when they enter LDS, so that each block does it once
// for all of its rows. LDS holds two tiles of K: while the waves multiply one, the block brings
// the next. Compiled once per format: RF_FORMAT is a type of formats.h, RF_NAME the same in lower
// case.
#include "rf/gemm_tiles.h"
#include "rf/linear.h"
#include "rf/mma.h"

namespace rf {

inline constexpr int kGemmWaves = Mma::kWideTiles ? 4 : 8;
inline constexpr int kGemmThreads = kGemmWaves * kWave;
inline constexpr int kTileColumnsBits = 7;
inline constexpr int kTileColumns = 1 << kTileColumnsBits;

struct GemmArguments {
  const uint8_t* weight;
  const half* x;  // [rows, 32 units]
  int rows;
  int units;
  Outputs outputs;
  Result result;
  float* partial;  // [splits, rows, stored rows], or null if one block takes all of K
  int split_units;
};

template <class Format, int kTileRows>
class Gemm {
 public:
  static __device__ __forceinline__ void run(const GemmArguments& arguments) {
    __shared__ Lds lds;
    const HalfTile x_tile[2] = {{lds.tiles.x[0]}, {lds.tiles.x[1]}};
    const HalfTile w_tile[2] = {{lds.tiles.w[0]}, {lds.tiles.w[1]}};

    const int stored_rows = arguments.outputs.stored_rows();
    const int first_row = blockIdx.x * kTileRows;
    const int first_column = blockIdx.y * kTileColumns;
    const int begin = blockIdx.z * arguments.split_units;
    const int end = min(begin + arguments.split_units, arguments.units);

    const int w_row = threadIdx.x % kTileColumns;
    const int w_stored_row = min(first_column + w_row, stored_rows - 1);
    WeightRow<Format, kGemmThreads / kTileColumns> weights(
        Planes(arguments.weight, stored_rows, w_stored_row), arguments.units,
        uniform(threadIdx.x / kTileColumns));
    ActivationTile<kTileRows, kGemmThreads> x(arguments.x, first_row, arguments.rows,
                                              arguments.units);

    weights.load(begin);
    x.start(begin, x_tile[0]);
    weights.template put<0>(begin, w_tile[0], w_row);
    x.finish(x_tile[0]);
    if constexpr (kUnits == 1) weights.load(begin + 1);
    lds_barrier();

    Accumulators sums{};
    // Two steps at a time, so that buffers and units of a chunk are known to the compiler.
    for (int unit = begin; unit < end; unit += 2) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int next = unit + odd + 1;
        if (next > end) break;
        if (next < end) x.start(next, x_tile[1 - odd]);
        multiply(sums, x_tile[odd], w_tile[odd]);
        if (next < end) {
          if (odd == 0) {
            weights.template put<kUnits - 1>(next, w_tile[1], w_row);
          } else {
            weights.template put<0>(next, w_tile[0], w_row);
          }
          x.finish(x_tile[1 - odd]);
          if (kUnits == 1 || odd == 0) weights.load(next + 1);
        }
        lds_barrier();
      }
    }
    store(sums, lds.staged, arguments, first_row, first_column);
  }

 private:
  static constexpr int kUnits = WeightRow<Format, 1>::kUnits;
  // The waves of a block form a grid over its tile of y.
  static constexpr int kWaveColumns = Mma::kWideTiles && kTileRows >= 64 ? 2 : 4;
  static constexpr int kWaveRows = kGemmWaves / kWaveColumns;
  static constexpr int kRowTiles = kTileRows / 16 / kWaveRows;
  static constexpr int kColumnTiles = kTileColumns / 16 / kWaveColumns;

  using Accumulators = Mma::Acc[kRowTiles][kColumnTiles];

  // A tile of 16 rows of each wave, on the way out. The padding keeps the rows of a matrix
  // instruction's result in different banks.
  static constexpr int kStagedRows = 16 * kWaveRows;
  struct Staged {
    float values[kStagedRows][kTileColumns + 8];
  };
  union Lds {
    struct {
      U4 x[2][kTileRows * kTileChunks];
      U4 w[2][kTileColumns * kTileChunks];
    } tiles;
    Staged staged;
  };

  static __device__ __forceinline__ int wave_row() {
    return wave_id() / kWaveColumns * (kRowTiles * 16);
  }
  static __device__ __forceinline__ int wave_column() {
    return wave_id() % kWaveColumns * (kColumnTiles * 16);
  }

  static __device__ __forceinline__ void multiply(Accumulators& sums, HalfTile x, HalfTile w) {
    // Without matrix instructions a step needs many registers: those of one step at a time.
    constexpr int kStepsAtOnce = Mma::kStepChunks == 1 ? 1 : kTileChunks;
#pragma unroll kStepsAtOnce
    for (int chunk = 0; chunk < kTileChunks; chunk += Mma::kStepChunks) {
      decltype(Mma::load_b(w, 0, 0)) b[kColumnTiles];
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) b[j] = Mma::load_b(w, wave_column() + 16 * j, chunk);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        const auto a = Mma::load_a(x, wave_row() + 16 * i, chunk);
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) Mma::multiply(sums[i][j], a, b[j]);
      }
    }
  }

  // Through LDS, as a lane holds a few values of many rows and memory wants whole rows.
  static __device__ __forceinline__ void store(const Accumulators& sums, Staged& staged,
                                               const GemmArguments& arguments, int first_row,
                                               int first_column) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
        for (int v = 0; v < kAccValues; ++v) {
          staged.values[wave_row() / kRowTiles + Mma::row(v)]
                       [wave_column() + 16 * j + Mma::column(v)] = sums[i][j].value[v];
        }
      }
      __syncthreads();
      store_staged(staged, arguments, first_row + 16 * i, first_column);
    }
  }

  // Row r of `staged` belongs to wave r / 16 of a column of waves.
  static __device__ __forceinline__ void store_staged(const Staged& staged,
                                                      const GemmArguments& arguments,
                                                      int first_row, int first_column) {
    const Outputs& outputs = arguments.outputs;
    const int stored_rows = outputs.stored_rows();
    const bool is_gated = outputs.activation != kNotGated && !arguments.partial;
    const int fours_bits = is_gated ? kTileColumnsBits - 3 : kTileColumnsBits - 2;  // of a row
#pragma unroll 1
    for (int item = threadIdx.x; item < kStagedRows << fours_bits; item += kGemmThreads) {
      const int r = item >> fours_bits;
      const int64_t row = first_row + r / 16 * (16 * kRowTiles) + r % 16;
      const int four = (item - (r << fours_bits)) * 4;
      if (row >= arguments.rows) continue;
      if (is_gated) {
        const int gate = Outputs::gate_row(four);
        const int column = first_column / 2 + four;
        if (column >= outputs.width) continue;
        const auto gates = load16(&staged.values[r][gate]);
        const auto ups = load16(&staged.values[r][gate + kGateRows]);
        Vec<float, 4> values;
        for (int k = 0; k < 4; ++k) values[k] = gated(gates[k], ups[k], outputs.activation);
        arguments.result.store_four(row, column, outputs.width, values);
        continue;
      }
      const int column = first_column + four;
      const auto values = load16(&staged.values[r][four]);
      if (arguments.partial && column < stored_rows) {
        const int64_t split_row = static_cast<int64_t>(blockIdx.z) * arguments.rows + row;
        store16(arguments.partial + split_row * stored_rows + column, values);
      } else if (!arguments.partial && column < outputs.width) {
        arguments.result.store_four(row, column, outputs.width, values);
      }
    }
  }
};

}  // namespace rf

// weight: a matrix of weights.h. x: halves [rows, 32 units]. With partial null, writes out (f32)
// and out_half, those that are not null, [rows, width] = x @ weight.T, gated if `activation` says so
// (gate.h), plus bias [width] and residual [rows, width] where these are not null. Otherwise K is
// split into pieces of split_units (a multiple of 8), and rf_gemm_sum adds up the pieces.
// Grid: (ceil(rows / tile rows), ceil(stored rows / 128), splits), block: the
// most threads that the kernel is compiled for.
#define RF_GEMM_NAME(name, rows) rf_gemm_##name##_m##rows
#define RF_GEMM(name, kTileRows)                                                                \
  extern "C" __global__ __launch_bounds__(rf::kGemmThreads) void RF_GEMM_NAME(name, kTileRows)( \
      const uint8_t* __restrict__ weight, const rf::half* __restrict__ x,                       \
      const float* __restrict__ bias, const float* residual, float* out, rf::half* out_half,    \
      float* partial, int rows, int width, int units, int activation, int split_units) {        \
    rf::Gemm<rf::RF_FORMAT, kTileRows>::run({weight, x, rows, units, {width, activation},       \
                                             {bias, residual, out, out_half}, partial,          \
                                             split_units});                                     \
  }

RF_GEMM(RF_NAME, 32)
RF_GEMM(RF_NAME, 64)
RF_GEMM(RF_NAME, 128)
