// y = x W^T for a few rows of x, with quantised W, on int8 matrix instructions: GEMV for batches.
//
// Bound by reading W once, like GEMV, but a weight costs the same for one row of x and for eight. A
// block computes 16 stored rows for all rows of x; its waves take turns along K. A wave takes a
// step of K at a time: its lanes load the words of their own rows of W straight into the fragments,
// and bring the step of x to LDS, in a place of its own. Compiled once per format.
#include "rf/formats.h"
#include "rf/linear.h"
#include "rf/mma_int8.h"

namespace rf {

inline constexpr int kInt8Rows = 8;  // of x, at most, in all slices together
inline constexpr int kInt8Threads = 256;
inline constexpr int kInt8Waves = kInt8Threads / kWave;

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

// A step of x in the LDS of one wave: the rows of a tile, kBlocks quant blocks of K. kSums: how
// many sums of a quant block's values there shall be.
template <class Matrix, int kBlocks, int kSums>
class StagedActivations {
  static constexpr int kRows = Matrix::kColumns;
  static constexpr int kPieces = kRows * kBlocks * 2 / kWave;  // of 16 bytes, a lane's
  static constexpr int kScales = kRows * kBlocks / kWave;      // a lane's
  static constexpr int kRowWords = kBlocks * 8 + 4;  // padded: rows begin in different banks
  static_assert(kPieces * kWave == kRows * kBlocks * 2 && kScales * kWave == kRows * kBlocks);

 public:
  struct Lds {
    alignas(16) uint32_t words[kRows][kRowWords];
    alignas(16) float scale[1 + kSums][kBlocks][kRows];
  };

  // Rows beyond the last are the last again.
  __device__ __forceinline__ StagedActivations(const Int8Arguments& x, Lds& lds) : lds_(lds) {
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
      scale_[i] = scale_from_[i][first];
      if (first + item(i) % kBlocks < begin) scale_[i] = U2{};
    }
  }

  // Puts into LDS what was loaded last.
  __device__ __forceinline__ void put() {
    wave_sync();  // the step before has been read
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      uint32_t* row = lds_.words[item(i) / (2 * kBlocks)];
      *reinterpret_cast<U4*>(row + item(i) % (2 * kBlocks) * 4) = piece_[i];
    }
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      const int block = item(i) % kBlocks;
      const int place = Matrix::column_place(item(i) / kBlocks);
      const uint32_t scale = scale_[i][0], sums = scale_[i][1];
      lds_.scale[0][block][place] = __builtin_bit_cast(float, scale);
      // Of both halves together the sum does not leave the range of 16 bits either.
      if constexpr (kSums == 1) lds_.scale[1][block][place] = upper(sums * 0x10001u);
      if constexpr (kSums == 2) {
        lds_.scale[1][block][place] = upper(sums << 16);
        lds_.scale[2][block][place] = upper(sums);
      }
    }
    wave_sync();
  }

  __device__ __forceinline__ uint32_t word(int block, int k) const {
    return lds_.words[Matrix::activation_row()][block * 8 + k];
  }
  // Of a quant block of the rows that the lane has results of, the scales (`which` 0) or sums.
  __device__ __forceinline__ Vec<float, Matrix::kLaneColumns> scales(int which, int block) const {
    using Scales = Vec<float, Matrix::kLaneColumns>;
    return reinterpret_cast<const Scales*>(lds_.scale[which][block])[Matrix::lane_column_group()];
  }

 private:
  static __device__ __forceinline__ int item(int i) { return lane_id() + i * kWave; }
  static __device__ __forceinline__ float upper(uint32_t word) {
    return static_cast<float>(static_cast<int>(word) >> 16);
  }

  Lds& lds_;
  const U4* from_[kPieces];
  const U2* scale_from_[kScales];
  U4 piece_[kPieces];
  U2 scale_[kScales];
};

// Matrix is MmaInt8, where there is one.
template <class Format, class Matrix>
class Int8Gemm {
  static constexpr int kLaneRows = Matrix::kLaneRows;
  static constexpr int kLaneColumns = Matrix::kLaneColumns;
  static constexpr int kGroups = Matrix::kGroups;
  static constexpr int kWords = Matrix::kWords;
  static constexpr int kQuantBlocks = Format::kQuantBlocks;
  static constexpr int kScales = Format::kScales;
  static constexpr bool kHasCodebook = requires { typename Format::Codebook; };
  static constexpr int kTileRows = 16;
  static constexpr int kBlocks = kGroups * kQuantBlocks;  // of a step
  using Staged = StagedActivations<Matrix, kBlocks, Format::kOffset ? kScales : 0>;
  using LaneColumns = Vec<float, kLaneColumns>;
  using Sums = float[kLaneRows][kLaneColumns];
  static_assert(Matrix::kColumns >= kInt8Rows);

 public:
  static __device__ __forceinline__ void run(const Int8Arguments& arguments) {
    __shared__ Lds lds;
    Weights weights(arguments);
    Staged x(arguments, lds.staged[wave_id()]);

    const int chunks = arguments.quant_blocks / kQuantBlocks;
    const int step = static_cast<int>(blockDim.x) / kWave * kGroups;
    // A step that would reach beyond the last chunk begins earlier, and its first count nothing.
    const auto base = [&](int first) { return min(first, chunks - kGroups); };
    const auto load = [&](int first) {
      x.load(base(first) * kQuantBlocks, first * kQuantBlocks);
      issue_loads();
      weights.load(base(first));
      issue_loads();
    };

    // What the next step needs is on its way while this one is computed; x is asked for first, as
    // AMD's loads complete in order.
    Sums sums = {};
    const int begin = uniform(wave_id()) * kGroups;
    load(begin);
    prepare<Format>();
    for (int first = begin; first < chunks; first += step) {
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
    typename Staged::Lds staged[kInt8Waves];
    float parts[kInt8Waves][Matrix::kColumns][kTileRows + 1];
  };

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
        const Planes planes(arguments.weight, stored_rows, stored_row(Matrix::lane_row(r)));
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
  static __device__ __forceinline__ void add(Sums& sums, const typename Weights::Held& held, int c,
                                             int u, const Staged& x) {
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
    for (int j = 0; j < kWords; ++j)
      words[j] = x.word(block, Matrix::lane_part() + Matrix::kParts * j);

    Sums totals;
    add_part<0>(totals, codes, words, scales, x, block);
    if constexpr (kScales == 2) add_part<1>(totals, codes, words, scales, x, block);
    const LaneColumns x_scale = x.scales(0, block);
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) sums[r][i] += x_scale[i] * totals[r][i];
    }
  }

  // The weights that share a scale: all of a quant block, or half of it. Results are as of unit_dot
  // in gemv_dot.h.
  template <int kPart>
  static __device__ __forceinline__ void add_part(Sums& totals,
                                                  const uint32_t (&codes)[kLaneRows][kWords],
                                                  const uint32_t (&words)[kWords],
                                                  const Scales<kScales> (&scales)[kLaneRows],
                                                  const Staged& x, int block) {
    Sums products;
    Matrix::template multiply<kPart * kWords / kScales, kWords / kScales>(products, codes, words);
    LaneColumns x_sum{};
    if constexpr (Format::kOffset) x_sum = x.scales(1 + kPart, block);
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

  // Row `row` of the block's. The second eight of a gated layer are the up rows of the first.
  static __device__ __forceinline__ int stored_row(int row) {
    const int tile = blockIdx.x;
    return tile / 2 * kRowAlign + tile % 2 * kGroupRows + row / kGroupRows * kGateRows +
           row % kGroupRows;
  }

  // Adds up what the waves and the slices have, and writes the columns of this block.
  static __device__ __forceinline__ void finish(Lds& lds, const Sums& sums,
                                                const Int8Arguments& arguments) {
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) {
        lds.parts[wave_id()][Matrix::lane_column(i)][Matrix::lane_row(r)] = sums[r][i];
      }
    }
    __syncthreads();
    const auto total = [&](int x_row, int row) {
      float sum = 0.0f;
      for (int slice = 0; slice < arguments.slices; ++slice) {
        for (int wave = 0; wave < static_cast<int>(blockDim.x) / kWave; ++wave) {
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
      if (is_gated && row >= kGroupRows) continue;
      const int column = outputs.column(stored_row(row));
      if (column >= outputs.out_features) continue;
      float value = total(x_row, row);
      if (is_gated) value = gated(value, total(x_row, row + kGroupRows), outputs.activation);
      arguments.result.store(x_row, column, outputs.out_features, value);
    }
  }
};

template <class Format, class Matrix = MmaInt8>
__device__ __forceinline__ void gemm_int8(const Int8Arguments& arguments) {
  if constexpr (kHasMmaInt8) {
    Int8Gemm<Format, Matrix>::run(arguments);
  } else {
    __builtin_trap();  // not to be launched where there are no such instructions
  }
}

}  // namespace rf

// Arguments and result are those of rf_gemv_*, with 1 to 8 rows in all slices together and at least
// 8 quant blocks. Grid: stored rows / 16, block 64 to 256.
#define RF_GEMM_INT8(name, Format, ...)                                                   \
  extern "C" __global__ __launch_bounds__(rf::kInt8Threads) void rf_gemm_int8_##name(     \
      const uint8_t* __restrict__ weight, const int8_t* __restrict__ q,                   \
      const rf::ActScale* __restrict__ scale, const float* __restrict__ bias, float* out, \
      int rows, int slices, int out_features, int quant_blocks, int activation) {         \
    rf::gemm_int8<rf::Format>({weight,                                                    \
                               q,                                                         \
                               scale,                                                     \
                               rows,                                                      \
                               slices,                                                    \
                               quant_blocks,                                              \
                               {out_features, activation},                                \
                               {bias, out, nullptr}});                                    \
  }
RF_FORMATS(RF_GEMM_INT8)
