// Products of few rows of int8 with quantised W, on int8 matrix instructions: GEMV for batches.
//
// Bound by reading W once, like GEMV, but a weight costs the same for one row of x and for eight. A
// block computes 16 stored rows for all rows of x; its waves take turns along K. A wave takes a
// step of K at a time: its lanes take the words of their own rows of W straight into the fragments,
// from registers (int8_gemm.h) or LDS (int8_ahead.h), and bring the step of x to LDS, in a place of
// its own. Where there are blocks enough, two waves side by side bring it for both: then each block
// reads x for 32 stored rows, as every block reads all of x, and so much from the cache takes as
// long as W does.
#pragma once

#include "rf/gemm/int8_arguments.h"
#include "rf/mma/mma_int8.h"
#include "rf/weights/formats.h"

namespace rf {

inline constexpr int kInt8Threads = 256;
inline constexpr int kInt8Waves = kInt8Threads / kWave;
inline constexpr int kInt8WideWaves = 4;
inline constexpr int kInt8WideThreads = kInt8WideWaves * kWave;

// What codes of a format, less kZero, are multiplied with as signed bytes.
template <class Format>
inline constexpr int kStepOfCodes = [] {
  if constexpr (requires { Format::kSignedStep; }) return Format::kSignedStep;
  return 1;
}();

// A step of x in the LDS of kWaves waves: the rows of kTiles tiles, kBlocks quant blocks of K.
// kSums: how many sums of a quant block's values there shall be. kStep: of the codes that x is
// multiplied with, by which all scales are divided.
template <class Matrix, int kTiles, int kBlocks, int kSums, int kStep, int kWaves>
class StagedActivations {
  static constexpr int kLanes = kWaves * kWave;
  static constexpr int kRows = kTiles * Matrix::kColumns;
  static constexpr int kPieces = kRows * kBlocks * 2 / kLanes;             // of 16 bytes, a lane's
  static constexpr int kScales = (kRows * kBlocks + kLanes - 1) / kLanes;  // a lane's, at most
  static constexpr int kRowWords = kBlocks * 8 + 4;  // padded: rows begin in different banks
  static_assert(kPieces * kLanes == kRows * kBlocks * 2);

  struct Step {
    alignas(16) uint32_t words[kRows][kRowWords];
    alignas(16) float scale[1 + kSums][kBlocks][kRows];
  };

 public:
  // Waves that wait for each other do so once a step, with one to read and one to write.
  static constexpr int kSteps = kWaves == 1 ? 1 : 2;
  struct Lds {
    Step steps[kSteps];
  };

  // lane: of those of the waves. Rows beyond the last are the last again.
  __device__ __forceinline__ StagedActivations(const Int8Arguments& x, Lds& lds, int lane)
      : lds_(lds), lane_(lane), last_(x.x_rows() - 1) {
    const auto row = [&](int i) { return min(i, last_) * x.quant_blocks; };
    const auto piece = [&](int i) {
      return row(item(i) / (2 * kBlocks)) * 2 + item(i) % (2 * kBlocks);
    };
    const auto scale = [&](int i) { return row(item(i) / kBlocks) + item(i) % kBlocks; };
    q_ = reinterpret_cast<const U4*>(x.q) + piece(0);
    q_scale_ = reinterpret_cast<const U2*>(x.scale) + scale(0);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) behind_[i] = piece(i) - piece(0);
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      factor_[i] = 1.0f / kStep;
      scale_behind_[i] = scale(i) - scale(0);
    }
  }

  // Multiplies all scales that are put into LDS from now on with the factors of their rows.
  __device__ __forceinline__ void complete(const float* factors) {
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      factor_[i] = factors[min(item(i) / kBlocks, last_)] / kStep;
    }
  }

  // Begins to load the quant blocks from `first` on; those before `begin` shall count nothing.
  __device__ __forceinline__ void load(int first, int begin) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) piece_[i] = q_[behind_[i] + 2 * first];
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      if (!has_scale(i)) continue;
      scale_[i] = q_scale_[scale_behind_[i] + first];
      if (first + item(i) % kBlocks < begin) scale_[i] = U2{};
    }
  }

  // Puts into LDS what was loaded last.
  __device__ __forceinline__ void put() {
    if constexpr (kSteps == 1) {
      wave_sync();  // the step before has been read
    } else {
      step_ = 1 - step_;
    }
    Step& step = lds_.steps[step_];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      uint32_t* row = step.words[item(i) / (2 * kBlocks)];
      *reinterpret_cast<U4*>(row + item(i) % (2 * kBlocks) * 4) = piece_[i];
    }
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      if (!has_scale(i)) continue;
      const int block = item(i) % kBlocks;
      const int place = Matrix::column_place(item(i) / kBlocks);
      const uint32_t scale = scale_[i][0], sums = scale_[i][1];
      step.scale[0][block][place] = __builtin_bit_cast(float, scale) * factor_[i];
      // Of both halves together the sum does not leave the range of 16 bits either.
      if constexpr (kSums == 1) step.scale[1][block][place] = upper(sums * 0x10001u);
      if constexpr (kSums == 2) {
        step.scale[1][block][place] = upper(sums << 16);
        step.scale[2][block][place] = upper(sums);
      }
    }
    if constexpr (kSteps == 1) {
      wave_sync();
    } else {
      lds_barrier();
    }
  }

  __device__ __forceinline__ uint32_t word(int tile, int block, int k) const {
    return lds_.steps[step_]
        .words[tile * Matrix::kColumns + Matrix::activation_row()][block * 8 + k];
  }
  // Of a quant block of the rows that the lane has results of, the scales (`which` 0) or sums.
  __device__ __forceinline__ Vec<float, Matrix::kLaneColumns> scales(int tile, int which,
                                                                     int block) const {
    using Scales = Vec<float, Matrix::kLaneColumns>;
    const float* of_tile = lds_.steps[step_].scale[which][block] + tile * Matrix::kColumns;
    return reinterpret_cast<const Scales*>(of_tile)[Matrix::lane_column_group()];
  }

 private:
  __device__ __forceinline__ int item(int i) const { return lane_ + i * kLanes; }
  __device__ __forceinline__ bool has_scale(int i) const {
    return kRows * kBlocks % kLanes == 0 || item(i) < kRows * kBlocks;
  }
  static __device__ __forceinline__ float upper(uint32_t word) {
    return static_cast<float>(static_cast<int>(word) >> 16);
  }

  Lds& lds_;
  const U4* q_;  // of the first piece of a lane, from whose place those of the others are counted
  const U2* q_scale_;
  int lane_;
  int last_;
  int step_ = 0;
  int behind_[kPieces];
  int scale_behind_[kScales];
  float factor_[kScales];
  U4 piece_[kPieces];
  U2 scale_[kScales];
};

// Scales of a row of W for a step, of which lanes with the same row make one chunk's each.
template <class Format, class Matrix, bool kMakesAll>
class StepScales {
 public:
  StepScales() = default;
  // `chunk`: that numbered lane_group() of the step that begins with chunk `first`.
  __device__ __forceinline__ StepScales(const typename Format::Chunk& chunk, int first) {
#pragma unroll
    for (int u = 0; u < Format::kQuantBlocks; ++u) {
      own_[u] = Format::scales(chunk, (first + Matrix::lane_group()) % 4, u);
    }
  }

  // Of quant block u of chunk c of the step.
  __device__ __forceinline__ Scales<Format::kScales> of(int c, int u) const {
    Scales<Format::kScales> result;
    const int source = Matrix::group_lane(c);
#pragma unroll
    for (int part = 0; part < Format::kScales; ++part) {
      result.scale[part] = shfl(own_[u].scale[part], source);
      if constexpr (Format::kOffset) result.offset[part] = shfl(own_[u].offset[part], source);
    }
    return result;
  }

 private:
  Scales<Format::kScales> own_[Format::kQuantBlocks];
};

// The same where each lane makes all of them, as one header has those of a step: exchanges between
// lanes take the same time as reading x does.
template <class Format, class Matrix>
class StepScales<Format, Matrix, true> {
 public:
  StepScales() = default;
  __device__ __forceinline__ StepScales(const typename Format::Chunk& chunk, int) : all_(chunk) {}

  __device__ __forceinline__ Scales<Format::kScales> of(int c, int u) const {
    return all_[c * Format::kQuantBlocks + u];
  }

 private:
  typename Format::AllScales all_;
};

// What such products share, however weights come to a lane: for up to kMostRows rows of x, in all
// slices together, and kRowWaves waves side by side with kRowTiles times 16 stored rows each.
// kMostKWaves: that take turns along K. Matrix is MmaInt8, where there is one.
template <class Format, int kMostRows, int kRowWaves, int kRowTiles, int kMostKWaves, class Matrix>
class Int8Product {
 public:
  static constexpr int kTiles = (kMostRows + Matrix::kColumns - 1) / Matrix::kColumns;
  static_assert(kRowWaves == 1 || kRowWaves == 2);
  static constexpr int kTileLaneRows = Matrix::kLaneRows;
  static constexpr int kLaneRows = kRowTiles * kTileLaneRows;
  static constexpr int kLaneColumns = Matrix::kLaneColumns;
  static constexpr int kGroups = Matrix::kGroups;
  static constexpr int kWords = Matrix::kWords;
  static constexpr int kQuantBlocks = Format::kQuantBlocks;
  static constexpr int kScales = Format::kScales;
  static constexpr bool kHasCodebook = requires { typename Format::Codebook; };
  // Whether each lane makes all scales of its rows, as one header has those of a step.
  static constexpr bool kMakesAll =
      kWave == 32 && kGroups * kQuantBlocks == 8 && requires { typename Format::AllScales; };
  using StepScales = rf::StepScales<Format, Matrix, kMakesAll>;
  static constexpr int kWaveRows = 16 * kRowTiles;
  static constexpr int kTileRows = kWaveRows * kRowWaves;
  static constexpr int kBlocks = kGroups * kQuantBlocks;  // of a step
  using Staged = StagedActivations<Matrix, kTiles, kBlocks, Format::kOffset ? kScales : 0,
                                   kStepOfCodes<Format>, kRowWaves>;
  using LaneColumns = Vec<float, kLaneColumns>;
  using Sums = float[kRowTiles][kTileLaneRows][kLaneColumns];
  using Words = typename Format::Chunk[kLaneRows];  // of a chunk, of each row of a lane

  struct LaneScales {
    StepScales of_row[kLaneRows];
  };

  struct Lds {
    union {
      typename Staged::Lds staged[kMostKWaves];
      float parts[kMostKWaves][kTiles * Matrix::kColumns][kTileRows + 1];
    };
    float factors[kMostRows];
  };

  static __device__ __forceinline__ int k_waves() {
    return static_cast<int>(blockDim.x) / (kRowWaves * kWave);
  }
  // The first row of a wave among those of the block.
  static __device__ __forceinline__ int wave_row() { return wave_id() % kRowWaves * kWaveRows; }
  // Row `r` of a lane among those of the block.
  static __device__ __forceinline__ int lane_row(int r) {
    return wave_row() + r / kTileLaneRows * 16 + Matrix::lane_row(r % kTileLaneRows);
  }

  // Completes the norms of the rows of x, where they were left for later.
  static __device__ __forceinline__ void complete(Lds& lds, Staged& x,
                                                  const Int8Arguments& arguments) {
    if (kMostRows > kDeferredRows || !arguments.norm.squares) return;
    arguments.norm.find_factors(arguments.x_rows(), arguments.quant_blocks, lds.factors);
    lds_barrier();
    x.complete(lds.factors);
  }

  // Adds the products of chunk c of the step.
  static __device__ __forceinline__ void add(Sums (&sums)[kTiles], const Words& chunk,
                                             const LaneScales& scales, int c, const Staged& x) {
#pragma unroll
    for (int u = 0; u < kQuantBlocks; ++u) add(sums, chunk, scales, c, u, x);
  }

  // Calls `store` with what the waves and the slices together have.
  template <class Store>
  static __device__ __forceinline__ void finish(Lds& lds, const Sums (&sums)[kTiles],
                                                const Int8Arguments& arguments,
                                                const Store& store) {
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      auto& parts = lds.parts[wave_id() / kRowWaves];
#pragma unroll
      for (int r = 0; r < kLaneRows; ++r) {
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) {
          const int x_row = tile * Matrix::kColumns + Matrix::lane_column(i);
          parts[x_row][lane_row(r)] = sums[tile][r / kTileLaneRows][r % kTileLaneRows][i];
        }
      }
    }
    __syncthreads();
    store([&](int x_row, int row) {
      float sum = 0.0f;
      for (int slice = 0; slice < arguments.slices; ++slice) {
        for (int wave = 0; wave < k_waves(); ++wave) {
          sum += lds.parts[wave][slice * arguments.rows + x_row][row];
        }
      }
      return sum;
    });
  }

 private:
  // Adds the products of quant block u of chunk c of the step.
  static __device__ __forceinline__ void add(Sums (&sums)[kTiles], const Words& chunk,
                                             const LaneScales& lane_scales, int c, int u,
                                             const Staged& x) {
    const int block = c * kQuantBlocks + u;
    uint32_t codes[kRowTiles][kTileLaneRows][kWords], words[kWords];
    Scales<kScales> scales[kLaneRows];
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
#pragma unroll
      for (int j = 0; j < kWords; ++j) {
        const int k = Matrix::kParts * j + (kHasCodebook ? Matrix::lane_part() : 0);
        codes[r / kTileLaneRows][r % kTileLaneRows][j] = signed_code(chunk[r], u, k);
      }
      scales[r] = lane_scales.of_row[r].of(c, u);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int j = 0; j < kWords; ++j)
        words[j] = x.word(tile, block, Matrix::lane_part() + Matrix::kParts * j);

      Sums totals;
      add_part<0>(totals, codes, words, scales, x, tile, block);
      if constexpr (kScales == 2) add_part<1>(totals, codes, words, scales, x, tile, block);
      const LaneColumns x_scale = x.scales(tile, 0, block);
#pragma unroll
      for (int r = 0; r < kLaneRows; ++r) {
        const int row_tile = r / kTileLaneRows, row = r % kTileLaneRows;
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i)
          sums[tile][row_tile][row][i] += x_scale[i] * totals[row_tile][row][i];
      }
    }
  }

  // The weights that share a scale: all of a quant block, or half of it. Results are as of unit_dot
  // in gemv_dot.h.
  template <int kPart>
  static __device__ __forceinline__ void add_part(
      Sums& totals, const uint32_t (&codes)[kRowTiles][kTileLaneRows][kWords],
      const uint32_t (&words)[kWords], const Scales<kScales> (&scales)[kLaneRows], const Staged& x,
      int tile, int block) {
    Sums products;
#pragma unroll
    for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
      Matrix::template multiply<kPart * kWords / kScales, kWords / kScales>(products[row_tile],
                                                                            codes[row_tile], words);
    }
    LaneColumns x_sum{};
    if constexpr (Format::kOffset) x_sum = x.scales(tile, 1 + kPart, block);
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      const float scale = scales[r].scale[kPart];
      const auto& of_row = products[r / kTileLaneRows][r % kTileLaneRows];
      auto& to = totals[r / kTileLaneRows][r % kTileLaneRows];
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) {
        // A scale has few enough bits for its product with the bias to be exact.
        float total = Matrix::kBias == 0.0f ? scale * of_row[i]
                                            : fma(scale, of_row[i], -scale * Matrix::kBias);
        if constexpr (Format::kOffset) total = fma(scales[r].offset[kPart], x_sum[i], total);
        to[i] = kPart == 0 ? total : to[i] + total;
      }
    }
  }

  // Elements 4 k to 4 k + 3 of quant block u as signed bytes around 0.
  static __device__ __forceinline__ uint32_t signed_code(const typename Format::Chunk& chunk, int u,
                                                         int k) {
    if constexpr (kStepOfCodes<Format> > 1) {
      return Format::signed_code(chunk, u, k);
    } else {
      const uint32_t codes = Format::code(chunk, u, k);
      if constexpr (Format::kZero == 0) return codes;
      constexpr uint32_t kShift = (0x80u - Format::kZero) * 0x01010101u;
      return (codes + kShift) ^ 0x80808080u;
    }
  }
};

}  // namespace rf
