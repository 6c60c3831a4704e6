// Products as in int8_product.h with weights that lanes load into registers.
#pragma once

#include "rf/gemm/int8_product.h"

namespace rf {

template <class Format, int kMostRows, int kRowWaves, int kMostKWaves, class Matrix>
class Int8Gemm : Int8Product<Format, kMostRows, kRowWaves, 1, kMostKWaves, Matrix> {
  using Product = Int8Product<Format, kMostRows, kRowWaves, 1, kMostKWaves, Matrix>;
  using Product::kGroups;
  using Product::kHasCodebook;
  using Product::kLaneRows;
  using Product::kQuantBlocks;
  using Product::kTileRows;
  using typename Product::LaneScales;
  using typename Product::Lds;
  using typename Product::Staged;
  using typename Product::StepScales;
  using typename Product::Sums;
  using typename Product::Words;
  // Whether weights of the next step are asked for chunk by chunk, as those of this one have been
  // multiplied, so that there are fewer of them in registers: where loads need not complete in
  // order, as AMD's do. As was measured, chunks of one quant block take too short for that, and
  // waves side by side gain by it in formats that have most to unpack.
  static constexpr bool kRolls =
      Matrix::kLaneRows > 1 && kQuantBlocks > 1 && (kRowWaves == 1 || Format::kScales > 1);

 public:
  static __device__ __forceinline__ void run(const Int8Arguments& arguments) {
    const auto store = [&](const auto& total) { store_columns(arguments, total); };
    run(arguments, [] {}, store);
  }

  // Calls `begun` when what was launched before has ended, and in the end store(total) in all
  // threads, where total(x_row, row) is the product of a row of x and a stored row of the block.
  template <class Begun, class Store>
  static __device__ __forceinline__ void run(const Int8Arguments& arguments, const Begun& begun,
                                             const Store& store) {
    __shared__ Lds lds;
    Weights weights(arguments);
    const int k_wave = uniform(wave_id()) / kRowWaves;
    const int lane = static_cast<int>(threadIdx.x) % (kRowWaves * kWave);
    Staged x(arguments, lds.staged[k_wave], lane);

    const int chunks = arguments.quant_blocks / kQuantBlocks;
    const int step = Product::k_waves() * kGroups;
    // A step that would reach beyond the last chunk begins earlier, and its first count nothing.
    // Waves that wait for each other take as many steps each.
    const auto base = [&](int first) { return min(first, chunks - kGroups); };
    const auto load_x = [&](int first) {
      x.load(base(first) * kQuantBlocks, first * kQuantBlocks);
      issue_loads();
    };

    // What the next step needs is on its way while this one is computed; x is asked for first, as
    // AMD's loads complete in order.
    Sums sums[Product::kTiles] = {};
    const int begin = k_wave * kGroups;
    const int end = kRowWaves == 1 ? chunks : chunks + begin;
    if constexpr (kBeginsEarly) {
      weights.load(base(begin));
      wait_for_previous(arguments.q, arguments.scale, arguments.norm.squares);
      load_x(begin);
    } else {
      load_x(begin);
      weights.load(base(begin));
    }
    begun();
    Product::complete(lds, x, arguments);
    prepare<Format>();
    for (int first = begin; first < end; first += step) {
      x.put();
      const int next = base(first + step);
      const LaneScales scales = weights.scales(base(first));
      if constexpr (!kRolls) {
        const Weights held = weights;
        load_x(first + step);
        weights.load(next);
#pragma unroll
        for (int c = 0; c < kGroups; ++c) Product::add(sums, held.words(c), scales, c, x);
      } else {
        load_x(first + step);
        weights.load_scales(next);
#pragma unroll
        for (int c = 0; c < kGroups; ++c) {
          Product::add(sums, weights.words(c), scales, c, x);
          weights.load_words(c, next);
          issue_loads();
        }
      }
    }
    if constexpr (kMostRows <= kDeferredRows)
      let_next_begin();  // with more, blocks of the next would crowd
    Product::finish(lds, sums, arguments, store);
  }

 private:
  // What a lane loads of W: of each chunk of a step the words of its own rows and part, and what
  // has the scales of one chunk, which those with the same rows share.
  class Weights {
   public:
    __device__ __forceinline__ explicit Weights(const Int8Arguments& arguments) {
      const int stored_rows = arguments.outputs.stored_rows();
#pragma unroll
      for (int r = 0; r < kLaneRows; ++r) {
        const Planes planes(arguments.weight, stored_rows, stored_row(Product::lane_row(r)));
        rows_[r] = Format::of(planes, arguments.quant_blocks);
      }
    }

    // Begins to load the step that begins with chunk `first`.
    __device__ __forceinline__ void load(int first) {
#pragma unroll
      for (int c = 0; c < kGroups; ++c) load_words(c, first);
      load_scales(first);
      issue_loads();
    }
    __device__ __forceinline__ void load_words(int c, int first) {
#pragma unroll
      for (int r = 0; r < kLaneRows; ++r) {
        if constexpr (kHasCodebook) {
          words_[c][r] = rows_[r].load(first + c);
        } else {
          words_[c][r] = rows_[r].load(first + c, Part<Matrix::kParts>{Matrix::lane_part()});
        }
      }
    }
    __device__ __forceinline__ void load_scales(int first) {
#pragma unroll
      for (int r = 0; r < kLaneRows; ++r)
        of_scales_[r] = rows_[r].load(first + Matrix::lane_group());
    }

    // Chunk c of the step that was loaded last.
    __device__ __forceinline__ const Words& words(int c) const { return words_[c]; }
    // The scales of that step, which began with chunk `first`.
    __device__ __forceinline__ LaneScales scales(int first) const {
      LaneScales result;
#pragma unroll
      for (int r = 0; r < kLaneRows; ++r) result.of_row[r] = StepScales(of_scales_[r], first);
      return result;
    }

   private:
    Format rows_[kLaneRows];
    Words words_[kGroups];
    typename Format::Chunk of_scales_[kLaneRows];
  };

  // Row `row` of the block's. The second half of a gated layer are the up rows of the first.
  static __device__ __forceinline__ int stored_row(int row) {
    if constexpr (kTileRows == kRowAlign) return static_cast<int>(blockIdx.x) * kTileRows + row;
    const int tile = blockIdx.x;
    return tile / 2 * kRowAlign + tile % 2 * kGroupRows + row / kGroupRows * kGateRows +
           row % kGroupRows;
  }

  // Writes the columns of this block.
  template <class Total>
  static __device__ __forceinline__ void store_columns(const Int8Arguments& arguments,
                                                       const Total& total) {
    constexpr int kHalf = kTileRows / 2;
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

// Other arguments are those of Int8Gemm::run.
template <class Format, int kMostRows, int kRowWaves, int kMostKWaves, class Matrix = MmaInt8,
          class... Others>
__device__ __forceinline__ void gemm_int8(const Int8Arguments& arguments, const Others&... others) {
  if constexpr (kHasMmaInt8) {
    Int8Gemm<Format, kMostRows, kRowWaves, kMostKWaves, Matrix>::run(arguments, others...);
  } else {
    __builtin_trap();  // not to be launched where there are no such instructions
  }
}

}  // namespace rf
