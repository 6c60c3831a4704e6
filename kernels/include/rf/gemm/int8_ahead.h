// Products as in int8_product.h with weights that waves copy to LDS ahead, on Hopper GPUs: all that
// there is room for is on its way before the kernel in front has ended, and nothing of it takes
// registers.
#pragma once

#include "rf/gemm/int8_product.h"
#include "rf/gemm/streamed_weights.h"

namespace rf {

#if RF_WARPGROUPS

// Of up to kMostRows rows and 32 stored rows, which a wave has both tiles of. kOtherLds: bytes that
// the kernel needs besides. Rows have whole steps.
template <class Format, int kMostRows, int kOtherLds, class Matrix = MmaInt8>
class Int8Ahead {
  using Product = Int8Product<Format, kMostRows, 1, 2, kInt8Waves, Matrix>;
  static constexpr int kTiles = 2;
  using Weights = StreamedWeights<Format, Product::kBlocks, 1>;
  static constexpr int kMostLds = 227 * 1024;
  static constexpr int kRoom =
      (kMostLds - kOtherLds - static_cast<int>(sizeof(typename Product::Lds))) /
      (kInt8Waves * kTiles * Weights::kBytes);
  static constexpr int kStages = kRoom < 4 ? kRoom : 4;
  static_assert(kStages >= 2 && !Product::kHasCodebook);

 public:
  struct Lds {
    typename Product::Lds product;
    alignas(16) uint8_t stages[kInt8Waves][kStages][kTiles][Weights::kBytes];
  };

  // See Int8Gemm::run.
  template <class Begun, class Store>
  static __device__ __forceinline__ void run(const Int8Arguments& arguments, Lds& lds,
                                             const Begun& begun, const Store& store) {
    const int steps = arguments.quant_blocks / Product::kBlocks;
    const int k_waves = Product::k_waves();
    const int wave = uniform(wave_id());
    const Weights weights(arguments.weight, arguments.outputs.stored_rows(), steps);
    typename Product::Staged x(arguments, lds.product.staged[wave], lane_id());

    int next = wave, started = 0;  // the step that is copied next, and its stage
    const auto start = [&]() __attribute__((always_inline)) {
      if (next < steps) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          weights.start(kTiles * static_cast<int>(blockIdx.x) + tile, next,
                        lds.stages[wave][started][tile]);
        }
      }
      async_commit();
      next += k_waves;
      started = started + 1 == kStages ? 0 : started + 1;
    };
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) start();

    const auto load_x = [&](int step) {
      x.load(min(step, steps - 1) * Product::kBlocks, 0);
      issue_loads();
    };
    wait_for_previous(arguments.q, arguments.scale, arguments.norm.squares);
    load_x(wave);
    begun();
    Product::complete(lds.product, x, arguments);

    typename Product::Sums sums[1] = {};
    int taken = 0;
#pragma unroll 1
    for (int step = wave; step < steps; step += k_waves) {
      x.put();
      load_x(step + k_waves);
      async_wait<kStages - 2>();
      wave_sync();
      start();
      multiply(sums, lds.stages[wave][taken], x);
      taken = taken + 1 == kStages ? 0 : taken + 1;
    }
    let_next_begin();
    Product::finish(lds.product, sums, arguments, store);
  }

 private:
  static __device__ __forceinline__ void multiply(typename Product::Sums (&sums)[1],
                                                  const uint8_t (&stage)[kTiles][Weights::kBytes],
                                                  const typename Product::Staged& x) {
    Format rows[Product::kLaneRows];
    typename Product::LaneScales scales;
#pragma unroll
    for (int r = 0; r < Product::kLaneRows; ++r) {
      const int tile = r / Matrix::kLaneRows;
      rows[r] = Weights::row(stage[tile], Matrix::lane_row(r % Matrix::kLaneRows));
      scales.of_row[r] = {rows[r].load(Matrix::lane_group()), 0};
    }
#pragma unroll
    for (int c = 0; c < Product::kGroups; ++c) {
      typename Product::Words words;
#pragma unroll
      for (int r = 0; r < Product::kLaneRows; ++r)
        words[r] = rows[r].load(c, Part<Matrix::kParts>{Matrix::lane_part()});
      Product::add(sums, words, scales, c, x);
    }
  }
};

#endif

}  // namespace rf
