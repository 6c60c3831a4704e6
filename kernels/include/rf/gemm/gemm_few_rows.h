// GEMM for up to 64 rows of x on the matrix instructions of Hopper GPUs (warpgroup.h), in the place
// of gemm_direct.h.
#pragma once

#include "rf/gemm/few_rows_product.h"
#include "rf/gemm/gemm_block.h"

#if RF_WARPGROUPS

namespace rf {

template <bool kFirst, class First, class Second>
struct EitherOf {
  using Type = First;
};
template <class First, class Second>
struct EitherOf<false, First, Second> {
  using Type = Second;
};
template <bool kFirst, class First, class Second>
using Either = EitherOf<kFirst, First, Second>::Type;

template <class Format, int kRows, bool kStaged>
class FewRowsGemm {
  using Product = FewRowsProduct<Format, kRows, kStaged>;
  // All rows are staged at once: code for each 16 of them would be most of a kernel's, and code
  // that is read for the first time takes time (docs/benchmarks/products.md).
  using Block =
      GemmBlock<16 * Product::kRowTiles, kFewRowsWaves, kFewRowsWaves, true, Product::kRowTiles>;
  using Activations = Product::Activations;
  using Held = Product::Held;
  static constexpr int kQuantBlocks = Format::kQuantBlocks;
  static constexpr int kChunks = Product::kChunks, kTiles = Product::kTiles;
  static constexpr int kTileBytes = Product::kTileBytes;

  // Copies of weights that are under way while others are used, and bytes of LDS of a step.
  static constexpr int kStageBytes = kStaged ? FewRowsWeights<Format>::kBytes : 0;
  static constexpr int stages() {
    if constexpr (kStaged) {
      const int room = (kFewRowsLds - 2 * kTileBytes) / (kFewRowsWaves * kStageBytes);
      return room < 4 ? room : 4;
    }
    return 0;
  }
  static constexpr int kStages = stages();

 public:
  static constexpr int kMostRows = kRows;
  static constexpr int kThreads = Block::kThreads, kBlocks = kFewRowsBlocks;

  union Lds {
    alignas(warpgroup::kPlainAlignment)
        uint8_t tiles[2 * kTileBytes + kFewRowsWaves * kStages * kStageBytes];
    typename Block::Staged staged;
  };

  static __device__ __forceinline__ void run(const GemmArguments& arguments, Lds& lds) {
    run(arguments, lds, blockIdx.y, arguments.outputs.stored_rows());
  }

  // For tile `column_tile` of the matrix. Rows of parts of K are `part_columns` floats apart.
  static __device__ __forceinline__ void run(const GemmArguments& arguments, Lds& lds,
                                             int column_tile, int part_columns) {
    const int first_column = column_tile * kTileColumns;
    const int begin = blockIdx.z * arguments.split_quant_blocks;
    const int end = min(begin + arguments.split_quant_blocks, arguments.quant_blocks);

    // Each block begins at a place of K of its own, as in gemm_direct.h.
    const int steps = (end - begin + kStepQuantBlocks - 1) / kStepQuantBlocks;
    int step = static_cast<int>(blockIdx.y * static_cast<unsigned>(steps) / gridDim.y);
    int x_step = step, x_tile = 0;  // that are loaded next

    const auto x_in = [&](int buffer) {
      return reinterpret_cast<U4*>(lds.tiles) + buffer * Activations::kItems;
    };
    using Weights = Either<kStaged, ThroughLds, Direct>;
    Weights weights(arguments, first_column + Block::wave_column(), lds);
    int left_to_start = steps;
    const auto start_weights = [&]() __attribute__((always_inline)) {
      weights.start(begin / kStepQuantBlocks + step, left_to_start-- > 0);
      step = step + 1 == steps ? 0 : step + 1;
    };
    if constexpr (kStaged) {
#pragma unroll 1
      for (int i = 0; i < kStages - 1; ++i) start_weights();
      wait_for_previous(arguments.x, arguments.sources);
    }

    Activations x(arguments, end);
    typename Activations::Loaded next_x;
    const auto load_x = [&]() __attribute__((always_inline)) {
      next_x = x.load(begin + x_step * kStepQuantBlocks + x_tile * Product::kUnits);
      x_tile = x_tile + 1 == kTiles ? 0 : x_tile + 1;
      if (x_tile == 0) x_step = x_step + 1 == steps ? 0 : x_step + 1;
    };
    load_x();
    if constexpr (!kStaged) start_weights();
    x.put(next_x, x_in(0));
    load_x();
    warpgroup::publish();
    lds_barrier();

    const NibbleConstants constants(Format::kZero, arguments.quant_blocks < 0);
    Accumulators sums{};
    int buffer = 0;
#pragma unroll 1
    for (int left = steps; left > 0; --left) {
      // The next weights travel while these are used.
      const Held held = weights.take();
      issue_loads();
      start_weights();
      issue_loads();
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        x.put(next_x, x_in(1 - buffer));
        load_x();
        issue_loads();
        Product::multiply(sums.rows, constants, held, tile, x_in(buffer));
        warpgroup::publish();
        lds_barrier();
        buffer = 1 - buffer;
      }
    }
    if (arguments.partial) {
      const int64_t place = static_cast<int64_t>(blockIdx.z) * arguments.rows * part_columns;
      Product::store(sums.rows, arguments.partial + place, part_columns, arguments.first_row,
                     arguments.rows, first_column + Block::wave_column(),
                     arguments.outputs.stored_rows(), nullptr);
    } else {
      Block::store(sums.all, 1.0f, lds.staged, arguments, first_column);
    }
  }

 private:
  // A wave has one column of tiles.
  static_assert(Block::kColumnTiles == 1 && Block::kRowTiles == Product::kRowTiles);
  union Accumulators {
    typename Product::Accumulators rows;
    typename Block::Accumulators all;
  };

  // What a lane loads of the weights of its wave, straight from memory.
  class Direct {
   public:
    __device__ __forceinline__ Direct(const GemmArguments& arguments, int first_column, Lds&)
        : last_(arguments.quant_blocks / kQuantBlocks - 1) {
      const int stored_rows = arguments.outputs.stored_rows();
#pragma unroll
      for (int r = 0; r < Mma::kLaneRows; ++r) {
        const int row = min(first_column + Mma::lane_row(r), stored_rows - 1);
        rows_[r] = Format::of(Planes(arguments.weight, stored_rows, row), arguments.quant_blocks);
      }
    }

    // Begins to load the chunks of a step; those beyond the last are the last again.
    __device__ __forceinline__ void start(int step, bool) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const int first = step * kStepQuantBlocks / kQuantBlocks;
        const int chunk = min(first + Mma::lane_chunk() * kChunks + i, last_);
#pragma unroll
        for (int r = 0; r < Mma::kLaneRows; ++r) held_.chunk[i][r] = rows_[r].load(chunk);
      }
    }

    // Returns what start() has begun to load.
    __device__ __forceinline__ const Held& take() const { return held_; }

   private:
    Format rows_[Mma::kLaneRows];
    int last_;
    Held held_;
  };

  // The same through LDS, where several steps are on their way. A wave has its own, which no other
  // waits for.
  class ThroughLds {
   public:
    __device__ __forceinline__ ThroughLds(const GemmArguments& arguments, int first_column,
                                          Lds& lds)
        : weights_(arguments, first_column),
          stages_(lds.tiles + 2 * kTileBytes + wave_id() * (kStages * kStageBytes)) {}

    __device__ __forceinline__ void start(int step, bool is_present) {
      if (is_present) weights_.start(step, stages_ + started_ * kStageBytes);
      async_commit();
      started_ = started_ + 1 == kStages ? 0 : started_ + 1;
    }

    __device__ __forceinline__ Held take() {
      async_wait<kStages - 2>();
      wave_sync();
      const Held held = Product::take(stages_ + taken_ * kStageBytes);
      taken_ = taken_ + 1 == kStages ? 0 : taken_ + 1;
      return held;
    }

   private:
    FewRowsWeights<Format> weights_;
    uint8_t* stages_;
    int started_ = 0, taken_ = 0;  // the stages that are next
  };
};

// What multiplies up to kRows rows that are in no groups. With 32 rows, weights that come straight
// from memory were measured to be faster.
template <class Format, int kRows>
using FewRowsOf = FewRowsGemm<Format, kRows, Staged<Format> && kRows != 32>;

// Multiplies up to 64 rows of a group.
template <class Format>
__device__ __forceinline__ void few_rows_gemm(const GemmArguments& arguments) {
  if constexpr (Staged<Format>) {
    using Lds = LdsOf<FewRowsGemm<Format, 8, true>, FewRowsGemm<Format, 16, true>,
                      FewRowsGemm<Format, 32, true>, FewRowsGemm<Format, 48, true>,
                      FewRowsGemm<Format, 64, true>>;
    RF_LARGE_LDS(Lds, lds);
    multiply_rows(arguments, *lds);
  } else {
    __shared__ LdsOf<FewRowsGemm<Format, 16, false>, FewRowsGemm<Format, 32, false>,
                     FewRowsGemm<Format, 48, false>, FewRowsGemm<Format, 64, false>>
        lds;
    multiply_rows(arguments, lds);
  }
}

}  // namespace rf

#endif
