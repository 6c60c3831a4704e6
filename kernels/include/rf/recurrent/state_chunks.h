// What recurrences in chunks of 64 tokens have in common, on matrix instructions: a first kernel
// makes for all chunks at once what does not need the states, a second one walks over the chunks of
// a sequence with a part of its state.
#pragma once

#include "rf/activations/act.h"
#include "rf/mma/mma.h"
#include "rf/recurrent/recurrent.h"
#include "rf/wave.h"

namespace rf {

inline constexpr int kStateChunk = 64;          // tokens
inline constexpr int kStateChunkWaves = 4;      // of a block; each has 16 of the tokens
inline constexpr int kStateChunkDim = 128;      // elements of a state over which is summed
inline constexpr int kStateChunkColumns = 32;   // elements of a state's other dimension in a block
inline constexpr int kNarrowStateColumns = 16;  // the same where such blocks are too few
static_assert(kStateChunkWaves * 16 == kStateChunk);

inline constexpr int kStateChunkThreads = kStateChunkWaves * kWave;

// A row of LDS is padded by eight halves: see RowTile of mma_attention.h.
inline constexpr int kKeyStride = kStateChunkDim + 8;
inline constexpr int kTokenStride = kStateChunk + 8;

// Steps of a product whose operands are loaded ahead.
inline constexpr int kStepUnroll = Mma::kStepChunks == 1 ? 1 : Mma::kWideTiles ? 4 : 2;

using Four = Vec<float, 4>;

// The number of a chunk among all of a step. Those of sequence i of a launch, which begins with
// token t of the step, begin at t / kStateChunk + i: sequences are in the order of their tokens.
__device__ __forceinline__ int64_t state_chunk(const RecurrentSequence& sequence, int launched,
                                               int chunk) {
  return sequence.first / kStateChunk + launched + chunk;
}

// Rows of halves, `stride` apart, as Mma reads them.
struct HalfRows {
  const half* data;
  int stride;

  __device__ __forceinline__ const Chunk8& operator()(int row, int chunk) const {
    return *reinterpret_cast<const Chunk8*>(data + row * stride + chunk * 8);
  }
};

// Calls visit(row, x, y) for some of a chunk's rows with four elements of each, a wave's or half a
// wave's lanes together with all of them: x from `from`, whose rows are `stride` apart, and y as
// much further on as `offset` says. Rows from `count` on are zeros. Several are on their way at
// once.
template <class Visit>
__device__ __forceinline__ void for_rows(const float* from, int64_t stride, int64_t offset,
                                         int count, Visit visit) {
  constexpr int kRowLanes = kStateChunkDim / 4;
  constexpr int kRowsAtOnce = kStateChunkThreads / kRowLanes;
  constexpr int kAhead = 4;
  const int lane = static_cast<int>(threadIdx.x) % kRowLanes;
  const int first = static_cast<int>(threadIdx.x) / kRowLanes;
  for (int base = first; base < kStateChunk; base += kAhead * kRowsAtOnce) {
    Four x[kAhead], y[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int row = min(base + i * kRowsAtOnce, count - 1);
      x[i] = load16(from + row * stride + lane * 4);
      y[i] = load16(from + row * stride + offset + lane * 4);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int row = base + i * kRowsAtOnce;
      visit(row, row < count ? x[i] : Four(0.0f), row < count ? y[i] : Four(0.0f));
    }
  }
}

// Writes the transpose of a tile of rows kKeyStride apart: [kStateChunkDim, kStateChunk].
__device__ __forceinline__ void pass_transposed(const half* tile, half* out) {
  constexpr int kPieces = kStateChunkDim * kStateChunk / 8;
  for (int piece = static_cast<int>(threadIdx.x); piece < kPieces; piece += kStateChunkThreads) {
    const int column = piece % kStateChunkDim, tokens = piece / kStateChunkDim * 8;
    Vec<half, 8> halves;
    for (int i = 0; i < 8; ++i) halves[i] = tile[(tokens + i) * kKeyStride + column];
    store16(out + column * kStateChunk + tokens, halves);
  }
}

// Writes a tile [kStateChunk, kStateChunk] with rows kTokenStride apart.
__device__ __forceinline__ void pass_scores(const half* tile, half* out) {
  constexpr int kPieces = kStateChunk * kStateChunk / 8;
  for (int piece = static_cast<int>(threadIdx.x); piece < kPieces; piece += kStateChunkThreads) {
    const int row = piece / (kStateChunk / 8), column = piece % (kStateChunk / 8) * 8;
    store16(out + row * kStateChunk + column, load16(tile + row * kTokenStride + column));
  }
}

// Sixteen rows of an operand, of kChunks chunks: loaded before they are needed where a wave has
// registers for that, and else when they are.
template <int kChunks, bool kIsRight>
class RowsAhead {
 public:
  __device__ __forceinline__ void start(HalfRows rows, int first_row) {
    rows_ = rows;
    first_row_ = first_row;
    if constexpr (kEarly) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) held_[i] = load(i);
    }
  }
  __device__ __forceinline__ auto operator[](int i) const {
    if constexpr (kEarly) {
      return held_[i];
    } else {
      return load(i);
    }
  }

 private:
  static constexpr bool kEarly = Mma::kWideTiles;
  static constexpr int kSteps = kChunks / Mma::kStepChunks;

  __device__ __forceinline__ auto load(int i) const {
    if constexpr (kIsRight) {
      return Mma::load_b(rows_, first_row_, i * Mma::kStepChunks);
    } else {
      return Mma::load_a(rows_, first_row_, i * Mma::kStepChunks);
    }
  }

  HalfRows rows_;
  int first_row_;
  decltype(Mma::load_a(HalfRows{}, 0, 0)) held_[kEarly ? kSteps : 1];
};

}  // namespace rf
