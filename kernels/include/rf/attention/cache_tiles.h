// Tiles of the paged cache in LDS, for prefill attention: how a block brings keys and values there.
#pragma once

#include "rf/attention/mma_attention.h"
#include "rf/attention/packed_values.h"

namespace rf {

inline constexpr int kPrefillThreads = 256;

__device__ __forceinline__ Vec<half, 8> load_eight(const half* from, float) { return load16(from); }
__device__ __forceinline__ Vec<half, 8> load_eight(const int8_t* from, float scale) {
  const Vec<int8_t, 8> values = *reinterpret_cast<const Vec<int8_t, 8>*>(from);
  Vec<half, 8> result;
  for (int i = 0; i < 8; ++i) result[i] = to_half(static_cast<float>(values[i]) * scale);
  return result;
}

__device__ __forceinline__ Vec<half, 8> load_eight(const uint32_t* from, float scale) {
  const Vec<half, 8> sums = turn_codes(unpack_nibbles(*from));
  Vec<half, 8> result;
  for (int i = 0; i < 8; ++i) result[i] = to_half(to_float(sums[i]) * (scale * kTurnedLength));
  return result;
}

// Where the keys or the values of one sequence and head lie; kHeadDim elements a token. Of packed
// values, lanes side by side ask for elements side by side, as they are turned back together.
template <class Stored, int kHeadDim>
struct HeadCache {
  const Stored* data;
  const float* scale;
  const int32_t* blocks;
  int kv_head, kv_heads;
  int context;

  // Tokens beyond the context are the last one again: what follows it was never written.
  __device__ __forceinline__ int64_t row(int token) const {
    token = min(token, context - 1);
    return cache_row(blocks[token / kBlockTokens], token % kBlockTokens, kv_head, kv_heads);
  }
  __device__ __forceinline__ const Stored* address(int64_t row, int dim) const {
    return data + (row * kHeadDim + dim) / kPacked<Stored>;
  }
  __device__ __forceinline__ Vec<half, 8> eight(int token, int dim) const {
    const int64_t own = row(token);
    return load_eight(address(own, dim), sizeof(Stored) == 2 ? 1.0f : scale[own]);
  }
};

// Copies rows of the cache, or the first kColumns elements of each, to an LDS tile with the same
// rows. start() begins, finish() completes; between them the data is in flight.
template <class Stored, int kColumns, int kKeys>
class RowLoader {
 public:
  static constexpr int kHalves = kKeys * RowTile<kColumns>::kStride;
  using Tile = RowTile<kColumns>;

  template <class Cache>
  __device__ __forceinline__ void start(const Cache& cache, int first_token, Tile tile) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (!in_tile(i)) continue;
      const int token = first_token + row_of(i);
      if constexpr (kAsync) {
        const half* from = cache.address(cache.row(token), chunk_of(i) * 8);
        async_copy16(tile.chunk(row_of(i), chunk_of(i)), from);
      } else {
        copied_[i] = cache.eight(token, chunk_of(i) * 8);
      }
    }
  }

  __device__ __forceinline__ void finish(Tile tile) {
    if constexpr (kAsync) {
      async_wait();
    } else {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        if (in_tile(i)) store16(tile.chunk(row_of(i), chunk_of(i)), copied_[i]);
      }
    }
  }

 private:
  static constexpr bool kAsync = kHasAsyncCopy && sizeof(Stored) == 2;
  static constexpr int kChunks = kKeys * kColumns / 8;
  static constexpr int kCopies = (kChunks + kPrefillThreads - 1) / kPrefillThreads;

  static __device__ __forceinline__ int index(int i) { return i * kPrefillThreads + threadIdx.x; }
  static __device__ __forceinline__ bool in_tile(int i) {
    return kChunks % kPrefillThreads == 0 || index(i) < kChunks;
  }
  static __device__ __forceinline__ int row_of(int i) { return index(i) / (kColumns / 8); }
  static __device__ __forceinline__ int chunk_of(int i) { return index(i) % (kColumns / 8); }

  Vec<half, 8> copied_[kAsync ? 1 : kCopies];
};

// The same with the tile transposed: a thread takes eight elements of four keys at a time.
template <class Stored, int kColumns, int kKeys>
class TransposingLoader {
 public:
  static constexpr int kHalves = kColumns * TransposedTile<kKeys>::kStride;
  using Tile = TransposedTile<kKeys>;

  template <class Cache>
  __device__ __forceinline__ void start(const Cache& cache, int first_token, Tile) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (!in_tile(i)) continue;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int token = first_token + mma::MatrixUnit::key_at(quad_of(i) * 4 + k);
        copied_[i][k] = cache.eight(token, chunk_of(i) * 8);
      }
    }
  }

  __device__ __forceinline__ void finish(Tile tile) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (!in_tile(i)) continue;
#pragma unroll
      for (int dim = 0; dim < 8; ++dim) {
        const Vec<half, 4> keys{copied_[i][0][dim], copied_[i][1][dim], copied_[i][2][dim],
                                copied_[i][3][dim]};
        half* chunk = tile.chunk(chunk_of(i) * 8 + dim, quad_of(i) / 2);
        *reinterpret_cast<Vec<half, 4>*>(chunk + quad_of(i) % 2 * 4) = keys;
      }
    }
  }

 private:
  static constexpr int kItems = kKeys / 4 * kColumns / 8;
  static constexpr int kCopies = (kItems + kPrefillThreads - 1) / kPrefillThreads;

  static __device__ __forceinline__ int index(int i) { return i * kPrefillThreads + threadIdx.x; }
  static __device__ __forceinline__ bool in_tile(int i) {
    return kItems % kPrefillThreads == 0 || index(i) < kItems;
  }
  static __device__ __forceinline__ int quad_of(int i) { return index(i) / (kColumns / 8); }
  static __device__ __forceinline__ int chunk_of(int i) { return index(i) % (kColumns / 8); }

  Vec<half, 8> copied_[kCopies][4];
};

template <bool kTransposed, class Stored, int kColumns, int kKeys>
struct ValueLoaderOf {
  using Type = RowLoader<Stored, kColumns, kKeys>;
};
template <class Stored, int kColumns, int kKeys>
struct ValueLoaderOf<true, Stored, kColumns, kKeys> {
  using Type = TransposingLoader<Stored, kColumns, kKeys>;
};

// A part of V^T, dims as rows, whichever way V lies in LDS.
template <class MatrixUnit, class Tile>
__device__ __forceinline__ typename MatrixUnit::A load_values(const Tile& tile, int dim, int key) {
  if constexpr (MatrixUnit::kTransposedV) {
    return MatrixUnit::load(tile, dim, key / 8);
  } else {
    return MatrixUnit::load_transposed(tile, key, dim / 8);
  }
}

}  // namespace rf
