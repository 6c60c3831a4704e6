// Products of rows, sorted by expert, with gate and up of their experts on the matrix instructions
// of Hopper GPUs, where each expert has about as many rows as have room in LDS.
#pragma once

#include "rf/experts/held_rows.h"

namespace rf {

inline constexpr int kGatedQuantBlocks = 64;  // of a row, at most
inline constexpr int kGatedRows = 48;         // of an expert: so many of those have room

#if RF_WARPGROUPS

// For up to kRows rows. LDS is full of these, so weights come straight to registers, a step ahead.
template <class Format, int kRows>
class ExpertsGatedGemm {
  using Product = FewRowsProduct<Format, kRows, true, kExpertsGemmWaves>;
  using Held = Product::Held;
  static constexpr int kStepChunks = kStepQuantBlocks / Format::kQuantBlocks;

 public:
  static constexpr int kMostRows = kRows;

  struct Lds {
    HeldRows<Product, kGatedQuantBlocks> x;
  };
  static_assert(sizeof(Lds) <= 227 * 1024);

  static __device__ __forceinline__ void run(const GemmArguments& arguments, Lds& lds,
                                             const TileShare& share) {
    const int steps = arguments.quant_blocks / kStepQuantBlocks;
    const int stored_rows = arguments.outputs.stored_rows();
    const int distance = share.parts * kExpertsGemmColumns;
    int row = share.part * kExpertsGemmColumns + own_row();

    Weights weights(arguments, steps, row, distance);
    weights.start();
    lds.x.bring(arguments, steps);

    const NibbleConstants constants(Format::kZero, hidden_zero());
#pragma unroll 1
    for (; row - own_row() < stored_rows; row += distance) {
      typename Product::Accumulators sums{};
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        const Held held = weights.take();
        issue_loads();
        weights.start();
        issue_loads();
#pragma unroll
        for (int tile = 0; tile < Product::kTiles; ++tile)
          Product::multiply(sums, constants, held, tile, lds.x.tile(step, tile));
      }
      store(sums, arguments, hidden(row));
    }
  }

 private:
  // The first of this lane's two stored rows among those of the block: the row of gate whose up row
  // is the other one, kGateRows further. So a lane has what makes one column.
  static __device__ __forceinline__ int own_row() {
    return wave_id() / 2 * kRowAlign + wave_id() % 2 * kGroupRows + Mma::lane_row(0);
  }

  // What the lane loads of the weights of its rows, which are `distance` further after each
  // `steps`.
  class Weights {
   public:
    __device__ __forceinline__ Weights(const GemmArguments& arguments, int steps, int row,
                                       int distance)
        : arguments_(arguments), steps_(steps), row_(row), distance_(distance) {
      aim();
    }

    // Begins to load the next step.
    __device__ __forceinline__ void start() {
      const int first = step_ * kStepChunks + Mma::lane_chunk() * Product::kChunks;
      // Items of rows that are so many groups of them further follow those of a row (weights.h).
      const int up = kGateRows / kGroupRows * steps_ * kStepChunks;
#pragma unroll
      for (int i = 0; i < Product::kChunks; ++i) {
#pragma unroll
        for (int r = 0; r < Mma::kLaneRows; ++r) held_.chunk[i][r] = gate_.load(first + i + r * up);
      }
      if (++step_ < steps_) return;
      step_ = 0;
      row_ += distance_;
      aim();
    }

    // Returns what start() has begun to load.
    __device__ __forceinline__ const Held& take() const { return held_; }

   private:
    // Behind the last rows come these again.
    __device__ __forceinline__ void aim() {
      const int stored_rows = arguments_.outputs.stored_rows();
      const int row = min(row_, stored_rows - kRowAlign + row_ % kRowAlign);
      gate_ = Format::of(Planes(arguments_.weight, stored_rows, row), arguments_.quant_blocks);
    }

    const GemmArguments& arguments_;
    int steps_, row_, distance_;
    int step_ = 0;
    Format gate_;
    Held held_;
  };

  // Straight from the lanes, eight of which have columns that lie side by side.
  static __device__ __forceinline__ void store(const Product::Accumulators& sums,
                                               const GemmArguments& arguments, int stored_row) {
    const Outputs& outputs = arguments.outputs;
    const int column = outputs.column(stored_row);
    if (column >= outputs.out_features) return;
    const float* const biases = arguments.result.bias;
    const float gate_bias = biases ? biases[column] : 0.0f;
    const float up_bias = biases ? arguments.up_bias[column] : 0.0f;
    const int first_row = hidden(arguments.first_row) + Mma::column(0);
    const int rows = arguments.rows - first_row;
    half* const first =
        arguments.result.out_half + static_cast<int64_t>(first_row) * outputs.out_features + column;
#pragma unroll
    for (int i = 0; i < Product::kRowTiles; ++i) {
#pragma unroll
      for (int v = 0; v < kAccValues; ++v) {
        if (v % 4 / 2 != 0) continue;                // of up
        const int row = 16 * i + v / 4 * 8 + v % 2;  // behind the lane's first
        if (row >= rows) continue;
        const float gate = sums[i].value[v] + gate_bias, up = sums[i].value[v + 2] + up_bias;
        first[static_cast<int64_t>(outputs.out_features) * row] =
            act_half(gated(gate, up, outputs.activation));
      }
    }
  }
};

#endif

}  // namespace rf
