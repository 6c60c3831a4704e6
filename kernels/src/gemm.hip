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
inline constexpr int kTileColumns = 128;

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
    __shared__ U4 x_chunks[2][kTileRows * kTileChunks];
    __shared__ U4 w_chunks[2][kTileColumns * kTileChunks];
    const HalfTile x_tile[2] = {{x_chunks[0]}, {x_chunks[1]}};
    const HalfTile w_tile[2] = {{w_chunks[0]}, {w_chunks[1]}};

    const int stored_rows = arguments.outputs.stored_rows();
    const int first_row = blockIdx.x * kTileRows;
    const int first_column = blockIdx.y * kTileColumns;
    const int begin = blockIdx.z * arguments.split_units;
    const int end = min(begin + arguments.split_units, arguments.units);

    const int w_row = threadIdx.x % kTileColumns;
    const int w_stored_row = min(first_column + w_row, stored_rows - 1);
    WeightRow<Format, kGemmThreads / kTileColumns> weights(
        Planes(arguments.weight, stored_rows, w_stored_row), arguments.units,
        threadIdx.x / kTileColumns);
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
    store(sums, arguments, first_row, first_column, stored_rows);
  }

 private:
  static constexpr int kUnits = WeightRow<Format, 1>::kUnits;
  // The waves of a block form a grid over its tile of y.
  static constexpr int kWaveColumns = Mma::kWideTiles && kTileRows >= 64 ? 2 : 4;
  static constexpr int kWaveRows = kGemmWaves / kWaveColumns;
  static constexpr int kRowTiles = kTileRows / 16 / kWaveRows;
  static constexpr int kColumnTiles = kTileColumns / 16 / kWaveColumns;
  static_assert(kColumnTiles % 2 == 0, "gate and up tiles are neighbours in one wave");

  using Accumulators = Mma::Acc[kRowTiles][kColumnTiles];

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

  static __device__ __forceinline__ void store(const Accumulators& sums,
                                               const GemmArguments& arguments, int first_row,
                                               int first_column, int stored_rows) {
    const Outputs& outputs = arguments.outputs;
    const Result& result = arguments.result;
    if (arguments.partial) {
      float* out = arguments.partial + static_cast<int64_t>(blockIdx.z) * arguments.rows * stored_rows;
      for_values<1>(arguments, first_row, first_column, [&](int i, int j, int v, int row, int stored) {
        out[static_cast<int64_t>(row) * stored_rows + stored] = sums[i][j].value[v];
      });
    } else if (outputs.activation == kNotGated) {
      for_values<1>(arguments, first_row, first_column, [&](int i, int j, int v, int row, int stored) {
        if (stored < outputs.width) {
          result.store(row, stored, outputs.width, sums[i][j].value[v]);
        }
      });
    } else {
      // Gate rows make the even tiles of columns, their up rows the odd ones.
      for_values<2>(arguments, first_row, first_column, [&](int i, int j, int v, int row, int stored) {
        const int column = outputs.column(stored);
        const float value =
            gated(sums[i][j].value[v], sums[i][j + 1].value[v], outputs.activation);
        if (column < outputs.width) result.store(row, column, outputs.width, value);
      });
    }
  }

  // Calls use(i, j, v, row, stored row) for value v of tile [i][j], for every kColumnStep-th j.
  template <int kColumnStep, class Use>
  static __device__ __forceinline__ void for_values(const GemmArguments& arguments, int first_row,
                                                    int first_column, Use use) {
    const int stored_rows = arguments.outputs.stored_rows();
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kColumnTiles; j += kColumnStep) {
#pragma unroll
        for (int v = 0; v < kAccValues; ++v) {
          const int row = first_row + wave_row() + 16 * i + Mma::row(v);
          const int stored = first_column + wave_column() + 16 * j + Mma::column(v);
          if (row < arguments.rows && stored < stored_rows) use(i, j, v, row, stored);
        }
      }
    }
  }
};

}  // namespace rf

// weight: a matrix of weights.h. x: halves [rows, 32 units]. With partial null, writes out (f32) and
// out_half, those that are not null, [rows, width] = x @ weight.T, gated if `activation` says so
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
