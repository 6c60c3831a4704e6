// What products of up to 64 rows of x have on the matrix instructions of Hopper GPUs (warpgroup.h):
// both operands, and a step of K.
//
// W is the left operand: a lane unpacks the weights of its own two rows straight into the fragment,
// and the matrix unit multiplies them while the lane unpacks the next. x is the right one and lies
// in LDS in the order in which lanes come to their weights. Lane group t has chunk t of each four;
// what the instruction takes for elements 2 t and 2 t + 1 of K are two of that chunk.
#pragma once

#include "rf/gemm/gemm_block.h"
#include "rf/gemm/gemm_tiles.h"
#include "rf/mma/warpgroup.h"
#include "rf/weights/formats.h"

#if RF_WARPGROUPS

namespace rf {

inline constexpr int kFewRowsWaves = 8;
inline constexpr int kFewRowsBlocks = 2;    // that share a multiprocessor
inline constexpr int kLaneGroups = 4;       // lanes that hold the same rows of W
inline constexpr int kStepQuantBlocks = 8;  // a super-block, where formats have those
inline constexpr int kStepUnits = kStepQuantBlocks / kLaneGroups;
// Bytes of LDS of a block where that many share a multiprocessor, less 4 KiB for a codebook.
inline constexpr int kFewRowsLds = (228 / kFewRowsBlocks - 1 - 4) * 1024;

// Formats whose weights come through LDS in tiles of 64 rows, and not straight from memory: those
// for which that was measured to be faster (docs/benchmarks.md).
template <class Format>
concept Staged = requires { requires Format::kStaged; };

// A tile of x in LDS. A unit is a quant block of every lane group: four pieces of eight elements,
// of each four words of two elements, of each word the rows of x, and of a row the words of the
// lane groups side by side. A gap behind each piece keeps the next one in other banks.
// With kSpread, four elements are in the order of spread_halves().
template <int kRows, int kUnits, int kWaves, bool kHalves, bool kSpread>
class FewRowsActivations {
  static constexpr int kRowPieces = kUnits * kTileChunks;  // of a row and lane group
  static constexpr int kPieceItems = 4 * kRows + 8 / kRowPieces;
  // Consecutive lanes bring consecutive pieces of a row: eight rows at once would meet in the same
  // banks of the L1 cache, and took twice the time with 64 rows. With kHalves a lane brings half a
  // piece where there are enough lanes.
  static constexpr int kThreads = kWaves * kWave;
  static constexpr int kWords = kHalves && kRows * kRowPieces < kThreads ? 2 : 4;
  static constexpr int kRowTasks = kRowPieces * 4 / kWords;
  static constexpr int kAll = kRows * kRowTasks;
  static constexpr int kTasks = (kAll + kThreads - 1) / kThreads;
  using Words = Vec<uint32_t, kWords>;

 public:
  // What a lane loads of a tile.
  struct Loaded {
    Words words[kTasks][kLaneGroups];
  };

  static constexpr int kItems = kRowPieces * kPieceItems;  // of 16 bytes
  static constexpr int kWordBytes = kRows * 16;
  // Bytes from the beginning of a tile.
  static constexpr int place_of(int unit, int piece, int word) {
    return ((unit * kTileChunks + piece) * kPieceItems + word * kRows) * 16;
  }

  __device__ __forceinline__ FewRowsActivations(const GemmArguments& arguments, int end)
      : end_(end) {
#pragma unroll
    for (int i = 0; i < kTasks; ++i) {
      const int row = arguments.first_row + row_of(i);
      is_present_[i] = has(i) && row < arguments.rows;
      const int64_t source = !is_present_[i] ? 0 : arguments.sources ? arguments.sources[row] : row;
      from_[i] = arguments.x + source * arguments.quant_blocks * kQuantBlock + piece() * 8 +
                 first_word() * 2;
    }
  }

  // Begins to load units whose quant blocks are `first` and following for the first lane group, and
  // kStepUnits further for each of the others. Those from `end` on, and rows that are not there,
  // are zeros.
  __device__ __forceinline__ Loaded load(int first) const {
    first += unit();
    Loaded loaded;
#pragma unroll
    for (int i = 0; i < kTasks; ++i) {
#pragma unroll
      for (int group = 0; group < kLaneGroups; ++group) {
        const int quant_block = first + kStepUnits * group;
        const bool is_present = is_present_[i] && quant_block < end_;
        const half* from = from_[i] + quant_block * kQuantBlock;
        loaded.words[i][group] = is_present ? *reinterpret_cast<const Words*>(from) : Words{};
      }
    }
    return loaded;
  }

  // Puts what was loaded into a tile.
  __device__ __forceinline__ void put(const Loaded& loaded, U4* tile) const {
#pragma unroll
    for (int i = 0; i < kTasks; ++i) {
      if (!has(i)) continue;
      Words words[kLaneGroups];
#pragma unroll
      for (int group = 0; group < kLaneGroups; ++group)
        words[group] = in_order(loaded.words[i][group]);
#pragma unroll
      for (int word = 0; word < kWords; ++word) {
        tile[place_of(unit(), piece(), first_word() + word) / 16 + row_of(i)] =
            U4{words[0][word], words[1][word], words[2][word], words[3][word]};
      }
    }
  }

 private:
  static __device__ __forceinline__ Words in_order(Words words) {
    if constexpr (kSpread) {
#pragma unroll
      for (int i = 0; i < kWords; i += 2) {
        const uint32_t first = words[i], second = words[i + 1];
        words[i] = byte_select(first, second, 0x05040100u);
        words[i + 1] = byte_select(first, second, 0x07060302u);
      }
    }
    return words;
  }

  static __device__ __forceinline__ int task(int i) { return threadIdx.x + i * kThreads; }
  static __device__ __forceinline__ bool has(int i) {
    return kAll % kThreads == 0 || task(i) < kAll;
  }
  static __device__ __forceinline__ int row_of(int i) { return task(i) / kRowTasks; }
  static __device__ __forceinline__ int unit() { return threadIdx.x % kRowPieces / kTileChunks; }
  static __device__ __forceinline__ int piece() { return threadIdx.x % kTileChunks; }
  static __device__ __forceinline__ int first_word() {
    return threadIdx.x % kRowTasks / kRowPieces * kWords;
  }

  const half* from_[kTasks];
  bool is_present_[kTasks];
  int end_;
};

// The weights that a wave multiplies in a step, in LDS: a matrix of its 16 stored rows and one
// super-block, with planes as weights.h has them. Lane groups read their own chunks of the same
// rows at once, so rows of planes of 16 bytes have other places in each group's items.
template <class Format>
class FewRowsWeights {
  static constexpr int kRows = 16;
  static constexpr int kQuantBlocks = 8;

  // Bits of a row's number that differ where it lies, in items of a lane group.
  template <class T>
  static constexpr bool kMoves = sizeof(T) == 16;
  static constexpr __device__ int moved(int group) { return group * 2; }

 public:
  static constexpr int kBytes = kRows * sizeof(typename Format::Block);

  __device__ __forceinline__ FewRowsWeights(const GemmArguments& arguments, int first_row)
      : data_(arguments.weight),
        super_blocks_(arguments.quant_blocks / kQuantBlocks),
        groups_(arguments.outputs.stored_rows() / kGroupRows),
        first_group_(first_row / kGroupRows) {}

  // Goes on with rows that are so many further.
  __device__ __forceinline__ void go_on(int rows) { first_group_ += rows / kGroupRows; }

  // Begins to copy a super-block of each row.
  __device__ __forceinline__ void start(int super_block, uint8_t* stage) const {
    Format::of(Copies{*this, static_cast<uint32_t>(super_block), 0, stage}, kQuantBlocks);
  }

  // Row `row` of what was copied, as this lane's group reads it.
  static __device__ __forceinline__ Format row(const uint8_t* stage, int row) {
    return Format::of(Staged{stage, row}, kQuantBlocks);
  }

 private:
  // Walks over planes, to copy them. Places are counted in eight bytes, as 64 bits for each would
  // take too many registers.
  struct Copies {
    const FewRowsWeights& weights;
    uint32_t super_block;
    uint32_t plane;
    uint8_t* to;

    template <class T>
    __device__ __forceinline__ Items<const T> take(int items) {
      constexpr int kPiece = 16;
      constexpr int kItemBytes = kGroupRows * sizeof(T);
      static_assert(kItemBytes % kPiece == 0);
      const int group_bytes = items * kItemBytes;
      const int pieces = kRows / kGroupRows * group_bytes / kPiece;
      const uint32_t stride = weights.super_blocks_ * (group_bytes / 8);  // of groups
#pragma unroll
      for (int i = 0; i < (pieces + kWave - 1) / kWave; ++i) {
        const int piece = i * kWave + lane_id();
        if (pieces % kWave != 0 && piece >= pieces) continue;
        const int group = piece / (pieces / 2);
        const int within = piece % (pieces / 2) * kPiece;
        const int item = within / kItemBytes;
        const uint32_t stored = min(weights.first_group_ + group, weights.groups_ - 1);
        const uint32_t from =
            plane + stored * stride + super_block * (group_bytes / 8) + within / 8;
        int place = within;
        if (kMoves<T> && items % kLaneGroups == 0)
          place ^= moved(item / (items / kLaneGroups)) * kPiece;
        warpgroup::async_copy<kPiece>(to + group * group_bytes + place,
                                      weights.data_ + static_cast<uint64_t>(from) * 8);
      }
      plane += weights.groups_ * stride;
      to += kRows / kGroupRows * group_bytes;
      return {nullptr};
    }
  };

  // Walks over the planes that were copied.
  struct Staged {
    const uint8_t* next;
    int row;

    template <class T>
    __device__ __forceinline__ Items<const T> take(int items) {
      int own = row;
      if (kMoves<T> && items % kLaneGroups == 0) own ^= moved(Mma::lane_chunk());
      const auto* plane = reinterpret_cast<const T*>(next);
      next += kRows * items * sizeof(T);
      return {plane + own / kGroupRows * (items * kGroupRows) + own % kGroupRows};
    }
  };

  const uint8_t* data_;
  int super_blocks_;
  int groups_;  // of stored rows
  int first_group_;
};

// Constants that stay in registers: the compiler would move each to one where it is needed. It does
// not know that `none` is 0.
struct NibbleConstants {
  __device__ __forceinline__ NibbleConstants(int zero, uint32_t none)
      : exponent(0x64006400u + none),
        sixteenth(pair(0.0625f) + none),
        high(pair(-64.0f - zero) + none) {}

  uint32_t exponent;  // of the halves 1024
  uint32_t sixteenth;
  uint32_t high;

 private:
  static __device__ __forceinline__ uint32_t pair(float value) {
    return __builtin_bit_cast(uint32_t, Half2{to_half(value), to_half(value)});
  }
};

// Eight weights of PlainNibbles as half_weights() gives them, in fewer instructions, but of each
// four the even ones before the odd ones.
template <class Format>
__device__ __forceinline__ U4 spread_halves(const NibbleConstants& constants,
                                            const typename Format::Chunk& chunk,
                                            const Scales<Format::kScales>& scales, int u, int c) {
  static_assert(Format::kScales == 1 && !Format::kSigned);
  const half scale = to_half(scales.scale[0]);
  const half offset = to_half(scales.offset[0]);
  const U4 plane = Format::plain_nibbles(chunk, u);
  U4 halves;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = plane[c % 2 * 2 + i / 2] >> (i % 2 * 8);
    // Bits under the exponent of 1024: the half 1024 + code or 1024 + 16 code, exactly.
    Half2 codes;
    if (c < 2) {
      codes = unpack::as_halves((word & 0x000f000fu) | constants.exponent);
      codes -= to_half(1024.0f + Format::kZero);
    } else {
      codes = unpack::as_halves((word & 0x00f000f0u) | constants.exponent);
      codes = codes * unpack::as_halves(constants.sixteenth) + unpack::as_halves(constants.high);
    }
    codes *= scale;
    if constexpr (Format::kOffset) codes += offset;
    halves[i] = __builtin_bit_cast(uint32_t, codes);
  }
  return halves;
}

// A step of K of a block with kRows rows of x.
template <class Format, int kRows, bool kStaged, int kWaves = kFewRowsWaves>
struct FewRowsProduct {
  static constexpr int kQuantBlocks = Format::kQuantBlocks;
  static constexpr int kChunks = kStepUnits / kQuantBlocks;   // of a lane's row in a step
  static constexpr int kUnits = kRows > 32 ? 1 : kStepUnits;  // of a tile of x
  static constexpr int kTiles = kStepUnits / kUnits;
  static constexpr bool kSpread = kStaged && PlainNibbles<Format>;
  using Activations = FewRowsActivations<kRows, kUnits, kWaves, kStaged, kSpread>;
  static constexpr int kTileBytes = Activations::kItems * sizeof(U4);

  // Of 16 rows each. A wave has one column of tiles.
  static constexpr int kRowTiles = (kRows + 15) / 16;
  using Accumulators = Mma::Acc[kRowTiles];

  // What a lane multiplies of the weights of its wave in a step.
  struct Held {
    typename Format::Chunk chunk[kChunks][Mma::kLaneRows];
  };
  // Returns that of a step in LDS.
  static __device__ __forceinline__ Held take(const uint8_t* stage) {
    Held held;
#pragma unroll
    for (int r = 0; r < Mma::kLaneRows; ++r) {
      const Format row = FewRowsWeights<Format>::row(stage, Mma::lane_row(r));
#pragma unroll
      for (int i = 0; i < kChunks; ++i)
        held.chunk[i][r] = row.load(Mma::lane_chunk() * kChunks + i);
    }
    return held;
  }

  // Adds the products of tile `tile` of a step. Fragments take turns in two places, as one is read
  // while the next is made.
  static __device__ __forceinline__ void multiply(Accumulators& sums,
                                                  const NibbleConstants& constants,
                                                  const Held& held, int tile, const U4* x) {
    const warpgroup::Descriptor whole = warpgroup::plain_descriptor(x, Activations::kWordBytes);
    uint32_t a[2][2][4];
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int of_step = tile * kUnits + unit;
      const auto& chunk = held.chunk[of_step / kQuantBlocks];
      const int u = of_step % kQuantBlocks;
      Scales<Format::kScales> scales[Mma::kLaneRows];
#pragma unroll
      for (int r = 0; r < Mma::kLaneRows; ++r)
        scales[r] = Format::scales(chunk[r], Mma::lane_chunk(), u);
#pragma unroll
      for (int piece = 0; piece < kTileChunks; ++piece) {
        auto& own = a[piece % 2];
        if (unit > 0 || piece > 1) warpgroup::wait<1>();
#pragma unroll
        for (int r = 0; r < Mma::kLaneRows; ++r) {
          U4 halves;
          if constexpr (kSpread) {
            halves = spread_halves<Format>(constants, chunk[r], scales[r], u, piece);
          } else {
            halves = half_weights<Format>(chunk[r], scales[r], u, piece);
          }
#pragma unroll
          for (int word = 0; word < 4; ++word) own[word / 2][word % 2 * 2 + r] = halves[word];
        }
        warpgroup::begin();
#pragma unroll
        for (int two = 0; two < 2; ++two) {
          const int place = Activations::place_of(unit, piece, two * 2);
          const warpgroup::Descriptor b = warpgroup::behind(whole, place);
          if constexpr (kRows < 16) {
            warpgroup::multiply8(sums[0], own[two], b);
          } else {
            warpgroup::multiply(sums, own[two], b);
          }
        }
        warpgroup::commit();
      }
    }
    warpgroup::wait<0>();
    warpgroup::receive(sums);
  }

  // Writes sums to `to`, [any, stride], straight from the lanes, of which eight have columns that
  // lie side by side: through LDS waves would wait for each other. The wave's first column is
  // `first_column`, of so many; `biases` are theirs, or null.
  static __device__ __forceinline__ void store(const Accumulators& sums, float* to, int stride,
                                               int first_row, int rows, int first_column,
                                               int columns, const float* biases) {
    const int column = first_column + Mma::lane_row(0);
    first_row += Mma::column(0);
    rows -= first_row;
    float* const first = to + static_cast<int64_t>(first_row) * stride + column;
#pragma unroll
    for (int r = 0; r < Mma::kLaneRows; ++r) {
      if (column + r * kGroupRows >= columns) continue;
      const float bias = biases ? biases[column + r * kGroupRows] : 0.0f;
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int v = 0; v < kAccValues; ++v) {
          if (v % 4 / 2 != r) continue;
          const int row = 16 * i + v / 4 * 8 + v % 2;  // behind the lane's first
          float* const own = first + static_cast<int64_t>(stride) * row + r * kGroupRows;
          if (row < rows) *own = sums[i].value[v] + bias;
        }
      }
    }
  }
};

// LDS of a block that multiplies in one of these forms.
template <class... Gemms>
union LdsOf {};
template <class Gemm, class... Others>
union LdsOf<Gemm, Others...> {
  typename Gemm::Lds own;
  LdsOf<Others...> others;
};

// Multiplies in the first of these forms, which take ever more rows, that takes all of the block's;
// if none does, as many as the last takes. `more`: what that form's run() takes besides.
template <class Gemm, class... Others, class... More>
__device__ __forceinline__ void multiply_rows(const GemmArguments& arguments,
                                              LdsOf<Gemm, Others...>& lds, const More&... more) {
  if constexpr (sizeof...(Others) > 0) {
    if (arguments.rows - arguments.first_row > Gemm::kMostRows) {
      multiply_rows(arguments, lds.others, more...);
      return;
    }
  }
  Gemm::run(arguments, lds.own, more...);
}

}  // namespace rf

#endif
