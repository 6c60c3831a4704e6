// y = x W^T for a few rows of x, with quantised W, on int8 matrix instructions: GEMV for batches.
//
// Bound by reading W once, like GEMV, but a weight costs the same for one row of x and for eight. A
// block computes 16 stored rows for all rows of x; its waves take turns along K. A wave takes a
// step of K at a time: its lanes load the words of their own rows of W straight into the fragments,
// and bring the step of x to LDS, in a place of its own. Where there are blocks enough, two waves
// side by side bring it for both: then each block reads x for 32 stored rows, as every block reads
// all of x, and so much from the cache takes as long as W does. Compiled once per format.
#include "rf/linear.h"
#include "rf/mma/mma_int8.h"
#include "rf/weights/formats.h"

namespace rf {

inline constexpr int kInt8Threads = 256;
inline constexpr int kInt8Waves = kInt8Threads / kWave;
inline constexpr int kInt8WideWaves = 4;
inline constexpr int kInt8WideThreads = kInt8WideWaves * kWave;

struct Int8Arguments {
  const uint8_t* weight;
  const int8_t* q;
  const ActScale* scale;
  int rows;
  int slices;
  int quant_blocks;
  Outputs outputs;
  Result result;

  __device__ __forceinline__ int x_rows() const { return rows * slices; }
};

// A step of x in the LDS of kWaves waves: the rows of kTiles tiles, kBlocks quant blocks of K.
// kSums: how many sums of a quant block's values there shall be.
template <class Matrix, int kTiles, int kBlocks, int kSums, int kWaves>
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
      : lds_(lds), lane_(lane) {
    const auto row = [&](int i) {
      return static_cast<int64_t>(min(i, x.x_rows() - 1)) * x.quant_blocks;
    };
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      from_[i] = reinterpret_cast<const U4*>(x.q) + row(item(i) / (2 * kBlocks)) * 2 +
                 item(i) % (2 * kBlocks);
    }
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      if (!has_scale(i)) continue;
      scale_from_[i] =
          reinterpret_cast<const U2*>(x.scale) + row(item(i) / kBlocks) + item(i) % kBlocks;
    }
  }

  // Begins to load the quant blocks from `first` on; those before `begin` shall count nothing.
  __device__ __forceinline__ void load(int first, int begin) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) piece_[i] = from_[i][2 * first];
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      if (!has_scale(i)) continue;
      scale_[i] = scale_from_[i][first];
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
      step.scale[0][block][place] = __builtin_bit_cast(float, scale);
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
  int lane_;
  int step_ = 0;
  const U4* from_[kPieces];
  const U2* scale_from_[kScales];
  U4 piece_[kPieces];
  U2 scale_[kScales];
};

// For up to kMostRows rows of x, in all slices together, and 16 * kRowWaves stored rows. Matrix is
// MmaInt8, where there is one.
template <class Format, int kMostRows, int kRowWaves, class Matrix>
class Int8Gemm {
  static constexpr int kTiles = (kMostRows + Matrix::kColumns - 1) / Matrix::kColumns;
  static constexpr int kMostKWaves = (kRowWaves == 1 ? kInt8Waves : kInt8WideWaves) / kRowWaves;
  static_assert(kRowWaves == 1 || kRowWaves == 2);
  static constexpr int kLaneRows = Matrix::kLaneRows;
  static constexpr int kLaneColumns = Matrix::kLaneColumns;
  static constexpr int kGroups = Matrix::kGroups;
  static constexpr int kWords = Matrix::kWords;
  static constexpr int kQuantBlocks = Format::kQuantBlocks;
  static constexpr int kScales = Format::kScales;
  static constexpr bool kHasCodebook = requires { typename Format::Codebook; };
  static constexpr int kTileRows = 16 * kRowWaves;
  static constexpr int kBlocks = kGroups * kQuantBlocks;  // of a step
  using Staged =
      StagedActivations<Matrix, kTiles, kBlocks, Format::kOffset ? kScales : 0, kRowWaves>;
  using LaneColumns = Vec<float, kLaneColumns>;
  using Sums = float[kLaneRows][kLaneColumns];

 public:
  static __device__ __forceinline__ void run(const Int8Arguments& arguments) {
    __shared__ Lds lds;
    Weights weights(arguments);
    const int k_wave = uniform(wave_id()) / kRowWaves;
    const int lane = static_cast<int>(threadIdx.x) % (kRowWaves * kWave);
    Staged x(arguments, lds.staged[k_wave], lane);

    const int chunks = arguments.quant_blocks / kQuantBlocks;
    const int step = k_waves() * kGroups;
    // A step that would reach beyond the last chunk begins earlier, and its first count nothing.
    // Waves that wait for each other take as many steps each.
    const auto base = [&](int first) { return min(first, chunks - kGroups); };
    const auto load = [&](int first) {
      x.load(base(first) * kQuantBlocks, first * kQuantBlocks);
      issue_loads();
      weights.load(base(first));
      issue_loads();
    };

    // What the next step needs is on its way while this one is computed; x is asked for first, as
    // AMD's loads complete in order.
    Sums sums[kTiles] = {};
    const int begin = k_wave * kGroups;
    const int end = kRowWaves == 1 ? chunks : chunks + begin;
    if constexpr (kBeginsEarly) {
      weights.load(base(begin));
      wait_for_previous(arguments.q, arguments.scale);
      x.load(base(begin) * kQuantBlocks, begin * kQuantBlocks);
    } else {
      load(begin);
    }
    prepare<Format>();
    for (int first = begin; first < end; first += step) {
      x.put();
      const auto held = weights.held(base(first));
      load(first + step);
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
#pragma unroll
        for (int u = 0; u < kQuantBlocks; ++u) add(sums, held, c, u, x);
      }
    }
    finish(lds, sums, arguments);
  }

 private:
  union Lds {
    typename Staged::Lds staged[kMostKWaves];
    float parts[kMostKWaves][kTiles * Matrix::kColumns][kTileRows + 1];
  };

  static __device__ __forceinline__ int k_waves() {
    return static_cast<int>(blockDim.x) / (kRowWaves * kWave);
  }
  // The first row of a wave among those of the block.
  static __device__ __forceinline__ int wave_row() { return wave_id() % kRowWaves * 16; }

  // What a lane loads of W: of each chunk of a step the words of its own rows and part, and the
  // scales of one chunk, which those with the same rows share.
  class Weights {
   public:
    struct Held {
      typename Format::Chunk words[kLaneRows][kGroups];
      Scales<kScales> scales[kLaneRows][kQuantBlocks];  // of chunk lane_group() of the step
    };

    __device__ __forceinline__ explicit Weights(const Int8Arguments& arguments) {
      const int stored_rows = arguments.outputs.stored_rows();
#pragma unroll
      for (int r = 0; r < kLaneRows; ++r) {
        const Planes planes(arguments.weight, stored_rows,
                            stored_row(wave_row() + Matrix::lane_row(r)));
        rows_[r] = Format::of(planes, arguments.quant_blocks);
      }
    }

    __device__ __forceinline__ void load(int first) {
#pragma unroll
      for (int r = 0; r < kLaneRows; ++r) {
#pragma unroll
        for (int c = 0; c < kGroups; ++c) {
          if constexpr (kHasCodebook) {
            words_[r][c] = rows_[r].load(first + c);
          } else {
            words_[r][c] = rows_[r].load(first + c, Part<Matrix::kParts>{Matrix::lane_part()});
          }
        }
        of_scales_[r] = rows_[r].load(first + Matrix::lane_group());
      }
    }

    // What was loaded last, as from chunk `first` on.
    __device__ __forceinline__ Held held(int first) const {
      Held result;
#pragma unroll
      for (int r = 0; r < kLaneRows; ++r) {
#pragma unroll
        for (int c = 0; c < kGroups; ++c) result.words[r][c] = words_[r][c];
#pragma unroll
        for (int u = 0; u < kQuantBlocks; ++u) {
          result.scales[r][u] =
              Format::scales(of_scales_[r], (first + Matrix::lane_group()) % 4, u);
        }
      }
      return result;
    }

   private:
    Format rows_[kLaneRows];
    typename Format::Chunk words_[kLaneRows][kGroups];
    typename Format::Chunk of_scales_[kLaneRows];
  };

  // Adds the products of quant block u of chunk c of the step.
  static __device__ __forceinline__ void add(Sums (&sums)[kTiles],
                                             const typename Weights::Held& held, int c, int u,
                                             const Staged& x) {
    const int block = c * kQuantBlocks + u;
    uint32_t codes[kLaneRows][kWords], words[kWords];
    Scales<kScales> scales[kLaneRows];
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
#pragma unroll
      for (int j = 0; j < kWords; ++j) {
        const int k = Matrix::kParts * j + (kHasCodebook ? Matrix::lane_part() : 0);
        codes[r][j] = centred(Format::code(held.words[r][c], u, k));
      }
#pragma unroll
      for (int part = 0; part < kScales; ++part) {
        const int source = Matrix::group_lane(c);
        scales[r].scale[part] = shfl(held.scales[r][u].scale[part], source);
        if constexpr (Format::kOffset) {
          scales[r].offset[part] = shfl(held.scales[r][u].offset[part], source);
        }
      }
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
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) sums[tile][r][i] += x_scale[i] * totals[r][i];
      }
    }
  }

  // The weights that share a scale: all of a quant block, or half of it. Results are as of unit_dot
  // in gemv_dot.h.
  template <int kPart>
  static __device__ __forceinline__ void add_part(Sums& totals,
                                                  const uint32_t (&codes)[kLaneRows][kWords],
                                                  const uint32_t (&words)[kWords],
                                                  const Scales<kScales> (&scales)[kLaneRows],
                                                  const Staged& x, int tile, int block) {
    Sums products;
    Matrix::template multiply<kPart * kWords / kScales, kWords / kScales>(products, codes, words);
    LaneColumns x_sum{};
    if constexpr (Format::kOffset) x_sum = x.scales(tile, 1 + kPart, block);
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      const float scale = scales[r].scale[kPart];
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) {
        // A scale has few enough bits for its product with the bias to be exact.
        float total = Matrix::kBias == 0.0f ? scale * products[r][i]
                                            : fma(scale, products[r][i], -scale * Matrix::kBias);
        if constexpr (Format::kOffset) total = fma(scales[r].offset[kPart], x_sum[i], total);
        totals[r][i] = kPart == 0 ? total : totals[r][i] + total;
      }
    }
  }

  // The codes as signed bytes around 0.
  static __device__ __forceinline__ uint32_t centred(uint32_t codes) {
    if constexpr (Format::kZero == 0) return codes;
    constexpr uint32_t kShift = (0x80u - Format::kZero) * 0x01010101u;
    return (codes + kShift) ^ 0x80808080u;
  }

  // Row `row` of the block's. The second half of a gated layer are the up rows of the first.
  static __device__ __forceinline__ int stored_row(int row) {
    if constexpr (kTileRows == kRowAlign) return static_cast<int>(blockIdx.x) * kTileRows + row;
    const int tile = blockIdx.x;
    return tile / 2 * kRowAlign + tile % 2 * kGroupRows + row / kGroupRows * kGateRows +
           row % kGroupRows;
  }

  // Adds up what the waves and the slices have, and writes the columns of this block.
  static __device__ __forceinline__ void finish(Lds& lds, const Sums (&sums)[kTiles],
                                                const Int8Arguments& arguments) {
    constexpr int kHalf = kTileRows / 2;
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      auto& parts = lds.parts[wave_id() / kRowWaves];
#pragma unroll
      for (int r = 0; r < kLaneRows; ++r) {
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) {
          const int x_row = tile * Matrix::kColumns + Matrix::lane_column(i);
          parts[x_row][wave_row() + Matrix::lane_row(r)] = sums[tile][r][i];
        }
      }
    }
    __syncthreads();
    const auto total = [&](int x_row, int row) {
      float sum = 0.0f;
      for (int slice = 0; slice < arguments.slices; ++slice) {
        for (int wave = 0; wave < k_waves(); ++wave) {
          sum += lds.parts[wave][slice * arguments.rows + x_row][row];
        }
      }
      return sum;
    };
    const Outputs& outputs = arguments.outputs;
    const bool is_gated = outputs.activation != kNotGated;
    for (int item = threadIdx.x; item < arguments.rows * kTileRows; item += blockDim.x) {
      const int row = item % kTileRows;
      const int x_row = item / kTileRows;
      if (is_gated && row >= kHalf) continue;
      const int column = outputs.column(stored_row(row));
      if (column >= outputs.out_features) continue;
      float value = total(x_row, row);
      if (is_gated) value = gated(value, total(x_row, row + kHalf), outputs.activation);
      arguments.result.store(x_row, column, outputs.out_features, value);
    }
  }
};

template <class Format, int kMostRows, int kRowWaves, class Matrix = MmaInt8>
__device__ __forceinline__ void gemm_int8(const Int8Arguments& arguments) {
  if constexpr (kHasMmaInt8) {
    Int8Gemm<Format, kMostRows, kRowWaves, Matrix>::run(arguments);
  } else {
    __builtin_trap();  // not to be launched where there are no such instructions
  }
}

}  // namespace rf

// On an H200, where four such blocks are measured to be faster than fewer with more registers.
#if RF_NVIDIA
#define RF_INT8_WIDE_BOUNDS (rf::kInt8WideThreads, 4)
#else
#define RF_INT8_WIDE_BOUNDS (rf::kInt8WideThreads)
#endif

// Arguments and result are those of rf_gemv_*, with 1 to 8 rows in all slices together, or to 16
// for _wide_r16, and at least 8 quant blocks. out_half gets the result in halves if out is null.
// Grid: stored rows / 16, block 64 to 256; for _wide_*, stored rows / 32, block kInt8WideThreads.
#define RF_GEMM_INT8(name, Format, kMostRows, kRowWaves, bounds)                          \
  extern "C" __global__ __launch_bounds__ bounds void rf_gemm_int8_##name(                \
      const uint8_t* __restrict__ weight, const int8_t* __restrict__ q,                   \
      const rf::ActScale* __restrict__ scale, const float* __restrict__ bias, float* out, \
      rf::half* out_half, int rows, int slices, int out_features, int quant_blocks,       \
      int activation) {                                                                   \
    rf::gemm_int8<rf::Format, kMostRows, kRowWaves>({weight,                              \
                                                     q,                                   \
                                                     scale,                               \
                                                     rows,                                \
                                                     slices,                              \
                                                     quant_blocks,                        \
                                                     {out_features, activation},          \
                                                     {bias, out, out_half}});             \
  }
#define RF_GEMM_INT8_OF(name, Format, ...)                          \
  RF_GEMM_INT8(name, Format, 8, 1, (rf::kInt8Threads))              \
  RF_GEMM_INT8(wide_##name##_r8, Format, 8, 2, RF_INT8_WIDE_BOUNDS) \
  RF_GEMM_INT8(wide_##name##_r16, Format, 16, 2, RF_INT8_WIDE_BOUNDS)
RF_FORMATS(RF_GEMM_INT8_OF)
