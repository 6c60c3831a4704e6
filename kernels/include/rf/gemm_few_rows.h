// GEMM for up to 64 rows of x on the matrix instructions of Hopper GPUs (warpgroup.h), in the place
// of gemm_direct.h.
//
// W is the left operand: a lane unpacks the weights of its own two rows straight into the fragment,
// and the matrix unit multiplies them while the lane unpacks the next. x is the right one and lies
// in LDS in the order in which lanes come to their weights. Lane group t has chunk t of each four;
// what the instruction takes for elements 2 t and 2 t + 1 of K are two of that chunk.
#pragma once

#include "rf/formats.h"
#include "rf/gemm_block.h"
#include "rf/gemm_tiles.h"
#include "rf/warpgroup.h"

#if RF_WARPGROUPS

namespace rf {

inline constexpr int kFewRowsWaves = 8;
inline constexpr int kFewRowsBlocks = 2;  // that share a multiprocessor
inline constexpr int kLaneGroups = 4;     // lanes that hold the same rows of W

// A tile of x in LDS. A unit is a quant block of every lane group: four pieces of eight elements,
// of each four words of two elements, of each word the rows of x, and of a row the words of the
// lane groups side by side. A gap behind each piece keeps the next one in other banks.
template <int kRows, int kUnits>
class FewRowsActivations {
  static constexpr int kRowPieces = kUnits * kTileChunks;  // of a row and lane group
  static constexpr int kPieceItems = 4 * kRows + 8 / kRowPieces;

 public:
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
      from_[i] = arguments.x + source * arguments.quant_blocks * kQuantBlock + piece() * 8;
    }
  }

  // Begins to load units whose quant blocks are `first` and following for the first lane group, and
  // kDistance further for each of the others. Those from `end` on, and rows that are not there, are
  // zeros.
  template <int kDistance>
  __device__ __forceinline__ void load(int first) {
    first += unit();
#pragma unroll
    for (int i = 0; i < kTasks; ++i) {
#pragma unroll
      for (int group = 0; group < kLaneGroups; ++group) {
        const int quant_block = first + kDistance * group;
        const bool is_present = is_present_[i] && quant_block < end_;
        const half* from = from_[i] + quant_block * kQuantBlock;
        loaded_[i][group] = is_present ? *reinterpret_cast<const U4*>(from) : U4{};
      }
    }
  }

  // Puts what was loaded into a tile.
  __device__ __forceinline__ void put(U4* tile) const {
#pragma unroll
    for (int i = 0; i < kTasks; ++i) {
      if (!has(i)) continue;
      const auto& from = loaded_[i];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        tile[place_of(unit(), piece(), word) / 16 + row_of(i)] =
            U4{from[0][word], from[1][word], from[2][word], from[3][word]};
      }
    }
  }

 private:
  // Consecutive lanes bring consecutive pieces of a row: eight rows at once would meet in the same
  // banks of the L1 cache, and took twice the time with 64 rows.
  static constexpr int kThreads = kFewRowsWaves * kWave;
  static constexpr int kAll = kRows * kRowPieces;
  static constexpr int kTasks = (kAll + kThreads - 1) / kThreads;

  static __device__ __forceinline__ int task(int i) { return threadIdx.x + i * kThreads; }
  static __device__ __forceinline__ bool has(int i) {
    return kAll % kThreads == 0 || task(i) < kAll;
  }
  static __device__ __forceinline__ int row_of(int i) { return task(i) / kRowPieces; }
  static __device__ __forceinline__ int unit() { return threadIdx.x % kRowPieces / kTileChunks; }
  static __device__ __forceinline__ int piece() { return threadIdx.x % kTileChunks; }

  const half* from_[kTasks];
  bool is_present_[kTasks];
  int end_;
  U4 loaded_[kTasks][kLaneGroups];
};

template <class Format, int kRows>
class FewRowsGemm {
  using Block = GemmBlock<kRows, kFewRowsWaves, kFewRowsWaves, true>;
  static constexpr int kQuantBlocks = Format::kQuantBlocks;
  static constexpr int kStepQuantBlocks = 8;  // a super-block, where formats have those
  static constexpr int kStepUnits = kStepQuantBlocks / kLaneGroups;
  static constexpr int kChunks = kStepUnits / kQuantBlocks;   // of a lane's row in a step
  static constexpr int kUnits = kRows > 32 ? 1 : kStepUnits;  // of a tile of x
  static constexpr int kTiles = kStepUnits / kUnits;
  using Activations = FewRowsActivations<kRows, kUnits>;

 public:
  union Lds {
    alignas(warpgroup::kPlainAlignment) U4 x[2][Activations::kItems];
    typename Block::Staged staged;
  };

  static __device__ __forceinline__ void run(const GemmArguments& arguments, Lds& lds) {
    const int first_column = blockIdx.y * kTileColumns;
    const int begin = blockIdx.z * arguments.split_quant_blocks;
    const int end = min(begin + arguments.split_quant_blocks, arguments.quant_blocks);

    // Each block begins at a place of K of its own, as in gemm_direct.h.
    const int steps = (end - begin + kStepQuantBlocks - 1) / kStepQuantBlocks;
    int step = static_cast<int>(static_cast<int64_t>(blockIdx.y) * steps / gridDim.y);
    int x_step = step, x_tile = 0;  // that are loaded next

    Activations x(arguments, end);
    const auto load_x = [&]() __attribute__((always_inline)) {
      x.template load<kStepUnits>(begin + x_step * kStepQuantBlocks + x_tile * kUnits);
      x_tile = x_tile + 1 == kTiles ? 0 : x_tile + 1;
      if (x_tile == 0) x_step = x_step + 1 == steps ? 0 : x_step + 1;
    };
    const auto chunk = [&] { return (begin + step * kStepQuantBlocks) / kQuantBlocks; };

    Weights weights(arguments, first_column + Block::wave_column());
    load_x();
    weights.load(chunk());
    x.put(lds.x[0]);
    load_x();
    warpgroup::publish();
    lds_barrier();

    Accumulators sums{};
    int buffer = 0;
#pragma unroll 1
    for (int left = steps; left > 0; --left) {
      // The next weights travel while these are used.
      const typename Weights::Held held = weights.held();
      step = step + 1 == steps ? 0 : step + 1;
      issue_loads();
      weights.load(chunk());
      issue_loads();
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        x.put(lds.x[1 - buffer]);
        load_x();
        issue_loads();
        multiply(sums.rows, held, tile, lds.x[buffer]);
        warpgroup::publish();
        lds_barrier();
        buffer = 1 - buffer;
      }
    }
    Block::store(sums.all, 1.0f, lds.staged, arguments, first_column);
  }

 private:
  // A wave has one column of tiles.
  static_assert(Block::kColumnTiles == 1);
  union Accumulators {
    Mma::Acc rows[Block::kRowTiles];
    typename Block::Accumulators all;
  };

  // What a lane loads of the weights of its wave.
  class Weights {
   public:
    struct Held {
      typename Format::Chunk chunk[kChunks][Mma::kLaneRows];
    };

    __device__ __forceinline__ Weights(const GemmArguments& arguments, int first_column)
        : last_(arguments.quant_blocks / kQuantBlocks - 1) {
      const int stored_rows = arguments.outputs.stored_rows();
#pragma unroll
      for (int r = 0; r < Mma::kLaneRows; ++r) {
        const int row = min(first_column + Mma::lane_row(r), stored_rows - 1);
        rows_[r] = Format::of(Planes(arguments.weight, stored_rows, row), arguments.quant_blocks);
      }
    }

    // The chunks from `first` on; those beyond the last are the last again.
    __device__ __forceinline__ void load(int first) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const int chunk = min(first + Mma::lane_chunk() * kChunks + i, last_);
#pragma unroll
        for (int r = 0; r < Mma::kLaneRows; ++r) held_.chunk[i][r] = rows_[r].load(chunk);
      }
    }

    __device__ __forceinline__ const Held& held() const { return held_; }

   private:
    Format rows_[Mma::kLaneRows];
    int last_;
    Held held_;
  };

  // Adds the products of tile `tile` of a step. Fragments take turns in two places, as one is read
  // while the next is made.
  static __device__ __forceinline__ void multiply(Mma::Acc (&sums)[Block::kRowTiles],
                                                  const typename Weights::Held& held, int tile,
                                                  const U4* x) {
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
          const U4 halves = half_weights<Format>(chunk[r], scales[r], u, piece);
#pragma unroll
          for (int word = 0; word < 4; ++word) own[word / 2][word % 2 * 2 + r] = halves[word];
        }
        warpgroup::begin();
#pragma unroll
        for (int two = 0; two < 2; ++two) {
          const int place = Activations::place_of(unit, piece, two * 2);
          warpgroup::multiply(sums, own[two], warpgroup::behind(whole, place));
        }
        warpgroup::commit();
      }
    }
    warpgroup::wait<0>();
    warpgroup::receive(sums);
  }
};

// A block takes kTileRows rows, or 16 of 32 where there are no more.
template <class Format, int kTileRows>
__device__ __forceinline__ void few_rows_gemm(const GemmArguments& arguments) {
  using Whole = FewRowsGemm<Format, kTileRows>;
  using Half = FewRowsGemm<Format, 16>;
  union Lds {
    typename Whole::Lds whole;
    typename Half::Lds half;
  };
  __shared__ Lds lds;
  if (kTileRows == 32 && arguments.rows - arguments.first_row <= 16) {
    Half::run(arguments, lds.half);
  } else {
    Whole::run(arguments, lds.whole);
  }
}

}  // namespace rf

#endif
