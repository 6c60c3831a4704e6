// GEMM for few rows of x, where reading W is what takes the time.
//
// Every weight meets one tile of rows only, so nothing is gained by sharing it: a lane loads the
// weights of its own row and unpacks them straight into the fragment of a matrix instruction. The
// fragment wants other weights of a row in other lanes; as any order of K serves, lane group c
// takes chunk c of a step whole (its quant blocks, 16 bytes a load), and x is read from LDS in that
// order.
#pragma once

#include "rf/gemm/gemm_block.h"
#include "rf/gemm/gemm_tiles.h"
#include "rf/weights/formats.h"

namespace rf {

// A tile of x in LDS: kTileRows rows, kTileQuantBlocks quant blocks of K. A chunk of weights has
// kChunkQuantBlocks.
template <int kTileRows, int kTileQuantBlocks, int kChunkQuantBlocks, int kThreads>
class DirectActivations {
 public:
  static constexpr int kPieces = kTileRows * kTileQuantBlocks * kTileChunks;  // of 16 bytes

  __device__ __forceinline__ explicit DirectActivations(const GemmArguments& arguments)
      : from_(arguments.x) {
    if (!arguments.sources) {
      from_ += static_cast<int64_t>(arguments.first_row) * arguments.quant_blocks * kQuantBlock;
    }
    const int present = arguments.rows - arguments.first_row;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      offset_[i] = kAbsent;
      if (!in_tile(i) || row_of(i) >= present) continue;
      const int row =
          arguments.sources ? arguments.sources[arguments.first_row + row_of(i)] : row_of(i);
      offset_[i] = row * arguments.quant_blocks * kQuantBlock + piece_of(i) * 8;
    }
  }

  // Begins to bring quant blocks `quant_block` and following; those from `end` on are zeros, like
  // rows beyond the last. (To load the last row again instead would send all blocks to the same
  // memory at once.)
  __device__ __forceinline__ void start(int quant_block, int end, U4* tile) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (!in_tile(i)) continue;
      const bool present = offset_[i] != kAbsent && quant_block + piece_of(i) / kTileChunks < end;
      const half* from = from_ + offset_[i] + quant_block * kQuantBlock;
      if constexpr (kHasAsyncCopy) {
        U4* to = tile + place(row_of(i), piece_of(i) / kTileChunks, piece_of(i) % kTileChunks);
        if (present) {
          async_copy16(to, from);
        } else {
          *to = U4{};
        }
      } else {
        copied_[i] = present ? *reinterpret_cast<const U4*>(from) : U4{};
      }
    }
  }

  // After this and a barrier, the tile that start() was given is complete.
  __device__ __forceinline__ void finish(U4* tile, float factor) {
    if constexpr (kHasAsyncCopy) {
      async_wait();
    } else {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        if (!in_tile(i)) continue;
        tile[place(row_of(i), piece_of(i) / kTileChunks, piece_of(i) % kTileChunks)] =
            raised(copied_[i], factor);
      }
    }
  }

  // Where piece `piece` of a quant block lies. Neither the lanes that write consecutive pieces of a
  // row nor those that read one piece of several rows and chunks meet a bank conflict.
  static __device__ __forceinline__ int place(int row, int quant_block, int piece) {
    const int chunk = quant_block / kChunkQuantBlocks;
    const int spread = piece % 2 | (quant_block % kChunkQuantBlocks ^ chunk % 2) << 1 |
                       (piece / 2 ^ chunk / 2 % 2) << 2;
    return (quant_block * kTileChunks + piece) * kTileRows + (row ^ spread);
  }

 private:
  static constexpr int kCopies = (kPieces + kThreads - 1) / kThreads;
  static constexpr int kRowPieces = kTileQuantBlocks * kTileChunks;

  static __device__ __forceinline__ int index(int i) { return threadIdx.x + i * kThreads; }
  static __device__ __forceinline__ int row_of(int i) { return index(i) / kRowPieces; }
  static __device__ __forceinline__ int piece_of(int i) { return index(i) % kRowPieces; }
  static __device__ __forceinline__ bool in_tile(int i) {
    return kPieces % kThreads == 0 || index(i) < kPieces;
  }

  static constexpr int kAbsent = -1;

  const half* from_;
  int offset_[kCopies];
  U4 copied_[kHasAsyncCopy ? 1 : kCopies];
};

// Matrix is Mma, where that has matrix instructions.
template <class Format, int kTileRows, class Matrix>
class DirectGemm {
  using Block = GemmBlock<kTileRows, Matrix::kDirectWaves, Matrix::kDirectWaves, true>;
  static constexpr int kQuantBlocks = Format::kQuantBlocks;
  static constexpr int kGroupChunks = Matrix::kStepChunks;  // that a wave multiplies at once
  static constexpr int kGroupQuantBlocks = kGroupChunks * kQuantBlocks;
  static constexpr int kTileQuantBlocks = kGroupQuantBlocks < 4 ? 4 : kGroupQuantBlocks;
  static constexpr int kGroups = kTileQuantBlocks / kGroupQuantBlocks;
  using Activations = DirectActivations<kTileRows, kTileQuantBlocks, kQuantBlocks, Block::kThreads>;

 public:
  union Lds {
    U4 x[2][Activations::kPieces];
    typename Block::Staged staged;
    typename Block::Votes votes;
  };

  // Returns false if it is to be called again, with the factor 1.
  static __device__ __forceinline__ bool run(const GemmArguments& arguments, Lds& lds,
                                             float factor = 1.0f) {
    const int first_column = blockIdx.y * kTileColumns;
    const int begin = blockIdx.z * arguments.split_quant_blocks;
    const int end = min(begin + arguments.split_quant_blocks, arguments.quant_blocks);

    // Each block begins at a place of K of its own, and goes around: otherwise all of them would
    // ask for the same rows of x at once, which lie in few banks of the L2 cache.
    const int steps = (end - begin + kTileQuantBlocks - 1) / kTileQuantBlocks;
    int step = static_cast<int>(blockIdx.y * static_cast<unsigned>(steps) / gridDim.y);
    const auto place = [&] { return begin + step * kTileQuantBlocks; };

    Weights weights(arguments, first_column + Block::wave_column());
    Activations x(arguments);
    x.start(place(), end, lds.x[0]);
    weights.load(place() / kQuantBlocks);
    x.finish(lds.x[0], factor);
    lds_barrier();

    typename Block::Accumulators sums{};
    int buffer = 0;
    for (int left = steps - 1; left >= 0; --left) {
      const int first_chunk = place() / kQuantBlocks;
      step = step + 1 == steps ? 0 : step + 1;
      if (left > 0) x.start(place(), end, lds.x[1 - buffer]);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        // The next weights travel while these are used. They are asked for after x: AMD's loads
        // complete in order, so that waiting for x would be waiting for the weights too.
        const int chunk = first_chunk + group * kGroupChunks;
        const typename Weights::Held held = weights.held();
        issue_loads();
        weights.load(group + 1 < kGroups ? chunk + kGroupChunks : place() / kQuantBlocks);
        issue_loads();
        multiply(sums, held, chunk, group, lds.x[buffer]);
      }
      if (left > 0) x.finish(lds.x[1 - buffer], factor);
      lds_barrier();
      buffer = 1 - buffer;
    }
    if (!Block::are_final(sums, factor, lds.votes)) return false;
    Block::store(sums, factor, lds.staged, arguments, first_column);
    return true;
  }

 private:
  // What a lane loads of the weights of its wave.
  class Weights {
   public:
    struct Held {
      typename Format::Chunk chunk[Block::kColumnTiles][Matrix::kLaneRows];
    };

    __device__ __forceinline__ Weights(const GemmArguments& arguments, int first_column)
        : last_(arguments.quant_blocks / kQuantBlocks - 1) {
      const int stored_rows = arguments.outputs.stored_rows();
#pragma unroll
      for (int j = 0; j < Block::kColumnTiles; ++j) {
#pragma unroll
        for (int r = 0; r < Matrix::kLaneRows; ++r) {
          const int row = min(first_column + 16 * j + Matrix::lane_row(r), stored_rows - 1);
          rows_[j][r] =
              Format::of(Planes(arguments.weight, stored_rows, row), arguments.quant_blocks);
        }
      }
    }

    // The chunks from `first` on; those beyond the last are the last again.
    __device__ __forceinline__ void load(int first) {
      const int chunk = min(first + Matrix::lane_chunk(), last_);
#pragma unroll
      for (int j = 0; j < Block::kColumnTiles; ++j) {
#pragma unroll
        for (int r = 0; r < Matrix::kLaneRows; ++r) {
          held_.chunk[j][r] = rows_[j][r].load(chunk);
        }
      }
    }

    __device__ __forceinline__ const Held& held() const { return held_; }

   private:
    Format rows_[Block::kColumnTiles][Matrix::kLaneRows];
    int last_;
    Held held_;
  };

  // Adds the products of the chunks from `chunk` on, which are group `group` of the tile of x.
  static __device__ __forceinline__ void multiply(typename Block::Accumulators& sums,
                                                  const typename Weights::Held& held, int chunk,
                                                  int group, const U4* x) {
#pragma unroll
    for (int u = 0; u < kQuantBlocks; ++u) {
#pragma unroll
      for (int piece = 0; piece < kTileChunks; ++piece) {
        const auto x_tile = [&](int row, int c) {
          const int quant_block = (group * kGroupChunks + c) * kQuantBlocks + u;
          return x[Activations::place(row, quant_block, piece)];
        };
        decltype(Matrix::load_b(x_tile, 0, 0)) b[Block::kRowTiles];
#pragma unroll
        for (int i = 0; i < Block::kRowTiles; ++i) b[i] = Matrix::load_b(x_tile, 16 * i, 0);
#pragma unroll
        for (int j = 0; j < Block::kColumnTiles; ++j) {
          Chunk8 own[Matrix::kLaneRows];
#pragma unroll
          for (int r = 0; r < Matrix::kLaneRows; ++r) {
            const auto& weights = held.chunk[j][r];
            const auto scales = Format::scales(weights, (chunk + Matrix::lane_chunk()) % 4, u);
            own[r] = half_weights<Format>(weights, scales, u, piece);
          }
          const auto a = Matrix::fragment_a(own);
#pragma unroll
          for (int i = 0; i < Block::kRowTiles; ++i) Matrix::multiply(sums[i][j], a, b[i]);
        }
      }
    }
  }
};

// A block takes 32 rows, or 16 where there are no more.
template <class Format, class Matrix = Mma>
__device__ __forceinline__ void direct_gemm(const GemmArguments& arguments) {
  using Half = DirectGemm<Format, 16, Matrix>;
  using Full = DirectGemm<Format, 32, Matrix>;
  union Lds {
    typename Half::Lds half;
    typename Full::Lds full;
  };
  __shared__ Lds lds;
  if (arguments.rows - arguments.first_row <= 16) {
    RF_WITH_RAISED(Half::run(arguments, lds.half, factor));
  } else {
    RF_WITH_RAISED(Full::run(arguments, lds.full, factor));
  }
}

}  // namespace rf
