// The tiles of A and of weights that a GEMM block keeps in LDS, and how they get there.
//
// A tile holds 32 values of K, as halves, for each of its rows: four chunks of 16 bytes. Two rows
// are as wide as the banks of LDS. A lane that writes goes along its row, lanes that read go down
// the rows; the chunk's position depends on the row such that neither meets a bank conflict.
#pragma once

#include "rf/activations/act.h"
#include "rf/mma/mma.h"
#include "rf/weights/formats.h"

namespace rf {

inline constexpr int kTileK = kQuantBlock;
inline constexpr int kTileChunks = kTileK / 8;

struct HalfTile {
  U4* chunks;  // LDS, kTileChunks a row

  __device__ __forceinline__ U4& operator()(int row, int chunk) const {
    return chunks[row * kTileChunks + (chunk ^ (row / 2 % kTileChunks))];
  }
};

// Where halves below 2^-14 count as zero, activations enter LDS kRaised times as large: those
// between a gate and what follows may all be small. Few are so large that they become infinite, and
// with them what is summed. Then the block begins again, with what it was given.
inline constexpr float kRaised = 256.0f;

__device__ __forceinline__ U4 raised(U4 halves, float factor) {
  if constexpr (!kFlushesHalves) return halves;
  return __builtin_bit_cast(U4, __builtin_bit_cast(Vec<half, 8>, halves) * to_half(factor));
}

// Copies a tile of activations [rows, K] at a time: asynchronously where the target can, else
// through registers, so that the loads run while the block computes.
template <int kRows, int kThreads>
class ActivationTile {
 public:
  // The tile of rows first_row ..; rows beyond the last are the last again. `sources`: the row of x
  // that each is, or null.
  __device__ __forceinline__ ActivationTile(const half* x, const int32_t* sources, int first_row,
                                            int rows, int quant_blocks) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      int64_t row = min(first_row + row_of(i), rows - 1);
      if (sources) row = sources[row];
      from_[i] = x + row * quant_blocks * kQuantBlock + chunk_of(i) * 8;
    }
  }

  __device__ __forceinline__ void start(int quant_block, HalfTile tile) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (!in_tile(i)) continue;
      const half* from = from_[i] + static_cast<int64_t>(quant_block) * kQuantBlock;
      if constexpr (kHasAsyncCopy) {
        async_copy16(&tile(row_of(i), chunk_of(i)), from);
      } else {
        copied_[i] = *reinterpret_cast<const U4*>(from);
      }
    }
  }

  // After this and a barrier `tile` is complete, if start() was given it kLater groups of copies
  // (async_commit()) ago, or last where copies are not asynchronous.
  template <int kLater>
  __device__ __forceinline__ void finish(HalfTile tile, float factor) {
    if constexpr (kHasAsyncCopy) {
      async_wait<kLater>();
    } else {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        if (in_tile(i)) tile(row_of(i), chunk_of(i)) = raised(copied_[i], factor);
      }
    }
  }

 private:
  static constexpr int kChunks = kRows * kTileChunks;
  static constexpr int kCopies = (kChunks + kThreads - 1) / kThreads;

  static __device__ __forceinline__ int index(int i) { return threadIdx.x + i * kThreads; }
  static __device__ __forceinline__ int row_of(int i) { return index(i) / kTileChunks; }
  static __device__ __forceinline__ int chunk_of(int i) { return index(i) % kTileChunks; }
  static __device__ __forceinline__ bool in_tile(int i) {
    return kChunks % kThreads == 0 || index(i) < kChunks;
  }

  const half* from_[kCopies];
  U4 copied_[kHasAsyncCopy ? 1 : kCopies];
};

// The four codes that code() gives, less kZero, as halves.
template <class Format>
__device__ __forceinline__ U2 code_halves(const typename Format::Chunk& chunk, int u, int k) {
  if constexpr (requires { Format::code_halves(chunk, u, k); }) {
    return Format::code_halves(chunk, u, k);
  } else {
    // A byte under the exponent of 1024 is the half 1024 + byte, exactly.
    constexpr uint32_t kExponent = 0x64646464u;
    constexpr uint32_t kFlipSigns = Format::kSigned ? 0x80808080u : 0u;
    constexpr float kZero = 1024.0f + (Format::kSigned ? 128.0f : Format::kZero);
    const uint32_t codes = Format::code(chunk, u, k) ^ kFlipSigns;
    U2 halves;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const uint32_t bytes = byte_select(codes, kExponent, pair ? 0x04030402u : 0x04010400u);
      halves[pair] = __builtin_bit_cast(uint32_t, unpack::as_halves(bytes) - to_half(kZero));
    }
    return halves;
  }
}

// Eight weights of a quantised quant block as halves: elements 8 c to 8 c + 7 of quant block u.
template <class Format>
__device__ __forceinline__ U4 half_weights(const typename Format::Chunk& chunk,
                                           const Scales<Format::kScales>& scales, int u, int c) {
  const int part = c * Format::kScales / kTileChunks;
  const half scale = to_half(scales.scale[part]);
  const half offset = to_half(scales.offset[part]);
  U4 halves;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const U2 codes = code_halves<Format>(chunk, u, 2 * c + k);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      Half2 weights = unpack::as_halves(codes[pair]) * scale;
      if constexpr (Format::kOffset) weights += offset;
      halves[2 * k + pair] = __builtin_bit_cast(uint32_t, weights);
    }
  }
  return halves;
}

// Calls write(c) for the chunk of a tile row that is piece `piece` of part `part`.
template <int kParts, class Write>
__device__ __forceinline__ void for_chunk_of_part(int part, int piece, Write write) {
  static_assert(kParts == 1 || kParts == 2);
  if (kParts == 1 || part == 0) {
    write(piece);
  } else {
    write(kTileChunks / 2 + piece);
  }
}

// The weights of one stored row on their way to LDS, a quant block at a time; kParts threads share
// the row.
template <class Format, int kParts>
class WeightRow {
 public:
  static constexpr int kQuantBlocks = Format::kQuantBlocks;  // of what load() returns
  using Held = typename Format::Chunk;

  __device__ __forceinline__ WeightRow(Planes planes, int quant_blocks, int part)
      : row_(Format::of(planes, quant_blocks)),
        last_(quant_blocks / kQuantBlocks - 1),
        part_(part) {}

  // Those of `quant_block`, which is even if the one after comes with it.
  __device__ __forceinline__ Held load(int quant_block) const {
    return row_.load(min(quant_block / kQuantBlocks, last_));
  }

  // Writes one of kTileChunks / kParts pieces of quant block u of `held`. `quant_block` is its
  // place in the row.
  __device__ __forceinline__ void put(const Held& held, int u, int quant_block, int piece,
                                      HalfTile tile, int tile_row) const {
    const auto scales = Format::scales(held, quant_block / kQuantBlocks % 4, u);
    for_chunk_of_part<kParts>(
        part_, piece, [&](int c) { tile(tile_row, c) = half_weights<Format>(held, scales, u, c); });
  }

 private:
  Format row_;
  int last_;
  int part_;
};

template <class T, int kParts>
class WeightRow<Plain<T>, kParts> {
 public:
  static constexpr int kQuantBlocks = 1;
  struct Held {
    U4 items[kQuantBlock / Plain<T>::kPerItem];
  };

  __device__ __forceinline__ WeightRow(Planes planes, int quant_blocks, int part)
      : row_(Plain<T>::of(planes, quant_blocks)), last_(quant_blocks - 1), part_(part) {}

  __device__ __forceinline__ Held load(int quant_block) const {
    const int first = min(quant_block, last_) * (kTileChunks * kChunkItems);
    Held held;
    for (int piece = 0; piece < kTileChunks / kParts; ++piece) {
      for_chunk_of_part<kParts>(part_, piece, [&](int c) {
        for (int i = 0; i < kChunkItems; ++i) {
          held.items[piece * kChunkItems + i] = row_.items[first + c * kChunkItems + i];
        }
      });
    }
    return held;
  }

  __device__ __forceinline__ void put(const Held& held, int, int, int piece, HalfTile tile,
                                      int tile_row) const {
    Vec<half, 8> halves;
    for (int i = 0; i < 8; ++i) {
      const U4 item = held.items[piece * kChunkItems + i / kPerItem];
      halves[i] = act_half(Plain<T>::value(item, i % kPerItem));
    }
    for_chunk_of_part<kParts>(part_, piece,
                              [&](int c) { tile(tile_row, c) = __builtin_bit_cast(U4, halves); });
  }

 private:
  static constexpr int kPerItem = Plain<T>::kPerItem;
  static constexpr int kChunkItems = 8 / kPerItem;

  Plain<T> row_;
  int last_;
  int part_;
};

}  // namespace rf
