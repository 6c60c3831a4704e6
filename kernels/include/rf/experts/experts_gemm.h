// Products of short rows, sorted by expert, with the matrices of their experts on the matrix
// instructions of Hopper GPUs: what experts multiply with down.
#pragma once

#include "rf/experts/held_rows.h"

namespace rf {

inline constexpr int kShortQuantBlocks = 40;  // of a row, at most: 64 of them have room

#if RF_WARPGROUPS

// For up to kRows rows.
template <class Format, int kRows>
class ExpertsGemm {
  static constexpr int kWaves = kExpertsGemmWaves;
  using Product = FewRowsProduct<Format, kRows, true, kWaves>;
  static constexpr int kStageBytes = FewRowsWeights<Format>::kBytes;
  // So many steps of weights are on their way while one is multiplied. Few rows wait for memory.
  static constexpr int kStages = kRows > 32 ? 1 : 2;

 public:
  static constexpr int kMostRows = kRows;

  struct Lds {
    HeldRows<Product, kShortQuantBlocks> x;
    alignas(16) uint8_t weights[kWaves][kStages][kStageBytes];
  };
  static_assert(sizeof(Lds) <= 227 * 1024);

  static __device__ __forceinline__ void run(const GemmArguments& arguments, Lds& lds,
                                             const TileShare& share) {
    const int steps = (arguments.quant_blocks + kStepQuantBlocks - 1) / kStepQuantBlocks;
    const int stored_rows = arguments.outputs.stored_rows();
    const int own_row = wave_id() * (2 * kGroupRows);
    const int distance = share.parts * kExpertsGemmColumns;
    int first_row = share.part * kExpertsGemmColumns;

    uint8_t* const stages = lds.weights[wave_id()][0];
    FewRowsWeights<Format> weights(arguments, first_row + own_row);
    int next_step = 0, next_row = first_row;
    const auto start_weights = [&](int stage) __attribute__((always_inline)) {
      if (next_row < stored_rows) weights.start(next_step, stages + stage * kStageBytes);
      async_commit();
      if (++next_step == steps) {
        next_step = 0;
        next_row += distance;
        weights.go_on(distance);
      }
    };
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) start_weights(stage);
    lds.x.bring(arguments, steps);

    const NibbleConstants constants(Format::kZero, hidden_zero());
    int stage = 0;
#pragma unroll 1
    for (; first_row < stored_rows; first_row += distance) {
      typename Product::Accumulators sums{};
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        async_wait<kStages - 1>();
        wave_sync();
        const auto held = Product::take(stages + stage * kStageBytes);
        wave_sync();  // the whole wave has taken what the next copy goes over
        start_weights(stage);
        if constexpr (kStages > 1) stage = stage + 1 == kStages ? 0 : stage + 1;
#pragma unroll
        for (int tile = 0; tile < Product::kTiles; ++tile)
          Product::multiply(sums, constants, held, tile, lds.x.tile(step, tile));
      }
      const int columns = arguments.outputs.out_features;
      Product::store(sums, arguments.result.out, columns, hidden(arguments.first_row),
                     arguments.rows, hidden(first_row) + own_row, columns, arguments.result.bias);
    }
  }
};

#endif

}  // namespace rf
