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

// Where the rows of a tile of kKeys tokens lie in the cache. All lanes have the same, from a
// look-up for each block of tokens and before the tile is asked for: so a lane's row takes it a few
// instructions, and nobody waits for the block table.
template <int kKeys>
struct TileRows {
  static constexpr int kBlocks = kKeys > kBlockTokens ? kKeys / kBlockTokens : 1;
  static_assert(kBlocks <= 2);

  int64_t first[kBlocks];  // of the tokens of a block
  int last[kBlocks];       // from there on, of the context

  static __device__ __forceinline__ bool is_second(int token) {
    return kBlocks > 1 && token >= kBlockTokens;
  }
  __device__ __forceinline__ int64_t block(int token) const {
    return is_second(token) ? first[kBlocks - 1] : first[0];
  }
  // Tokens beyond the context are the last one again: what follows it was never written. `more` is
  // the same for all lanes, so that none keeps the sum in a register.
  __device__ __forceinline__ uint32_t offset(int token, int more) const {
    if constexpr (kBlocks == 1) return min(token, last[0] - more) + more;
    return min((token + more) % kBlockTokens,
               is_second(token + more) ? last[kBlocks - 1] : last[0]);
  }
};

// The tokens of a sequence, and a head of their cache.
struct CachedTokens {
  const int32_t* blocks;
  int context;
  int kv_head, kv_heads;

  // The tile of kKeys tokens from `first_token` on, a multiple of these.
  template <int kKeys>
  __device__ __forceinline__ TileRows<kKeys> tile(int first_token) const {
    TileRows<kKeys> rows;
#pragma unroll
    for (int i = 0; i < TileRows<kKeys>::kBlocks; ++i) {
      const int token = min(first_token + i * kBlockTokens, context - 1);
      rows.first[i] =
          cache_row(blocks[token / kBlockTokens], token % kBlockTokens, kv_head, kv_heads);
      rows.last[i] = context - 1 - token;
    }
    return rows;
  }
};

// Keys or values of the cache; kHeadDim elements a row. Of packed values, lanes side by side ask
// for elements side by side, as they are turned back together.
template <class Stored, int kHeadDim>
struct HeadCache {
  const Stored* data;
  const float* scale;

  // Of token + more; as TileRows::offset().
  template <class Rows>
  __device__ __forceinline__ const Stored* address(const Rows& rows, int token, int more,
                                                   int dim) const {
    const Stored* const block = data + rows.block(token + more) * kHeadDim / kPacked<Stored>;
    return behind(block, (rows.offset(token, more) * kHeadDim + dim) / kPacked<Stored>);
  }
  template <class Rows>
  __device__ __forceinline__ Vec<half, 8> eight(const Rows& rows, int token, int more,
                                                int dim) const {
    const Stored* const from = address(rows, token, more, dim);
    if constexpr (sizeof(Stored) == 2) return load_eight(from, 1.0f);
    return load_eight(from, *behind(scale + rows.block(token + more), rows.offset(token, more)));
  }

 private:
  // With bytes counted in 32 bits, an instruction adds them to what all lanes have in common.
  template <class T>
  static __device__ __forceinline__ const T* behind(const T* common, uint32_t elements) {
    const auto bytes = static_cast<uint32_t>(elements * sizeof(T));
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(common) + bytes);
  }
};

// Whether what a lane's rows are apart, which all lanes have in common, is added behind the
// comparison with the end of the context. It saves registers that large heads have not, but takes
// more of them with scales, and without matrix instructions (gfx906, gfx1030).
template <class Stored>
inline constexpr bool kAddsLate = sizeof(Stored) == 2 && mma::MatrixUnit::kLargeHeadKeys > kTile;

// Copies rows of the cache, or the first kColumns elements of each, to an LDS tile with the same
// rows. start() begins, finish() completes; between them the data is in flight.
template <class Stored, int kColumns, int kKeys>
class RowLoader {
 public:
  static constexpr int kHalves = kKeys * RowTile<kColumns>::kStride;
  using Tile = RowTile<kColumns>;

  template <class Cache, class Rows>
  __device__ __forceinline__ void start(const Cache& cache, const Rows& rows, Tile tile) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (!in_tile(i)) continue;
      if constexpr (kAsync) {
        const half* from = cache.address(rows, own_row(i), more(i), chunk_of(i) * 8);
        async_copy16(tile.chunk(row_of(i), chunk_of(i)), from);
      } else {
        copied_[i] = cache.eight(rows, own_row(i), more(i), chunk_of(i) * 8);
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
  // Unless some lanes begin another row earlier.
  static constexpr bool kIsEven = kPrefillThreads % (kColumns / 8) == 0 && kAddsLate<Stored>;
  static __device__ __forceinline__ int own_row(int i) { return row_of(kIsEven ? 0 : i); }
  static __device__ __forceinline__ int more(int i) {
    return kIsEven ? i * (kPrefillThreads / (kColumns / 8)) : 0;
  }

  Vec<half, 8> copied_[kAsync ? 1 : kCopies];
};

// The same with the tile transposed: a thread takes eight elements of four keys at a time.
template <class Stored, int kColumns, int kKeys>
class TransposingLoader {
 public:
  static constexpr int kHalves = kColumns * TransposedTile<kKeys>::kStride;
  using Tile = TransposedTile<kKeys>;

  template <class Cache, class Rows>
  __device__ __forceinline__ void start(const Cache& cache, const Rows& rows, Tile) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (!in_tile(i)) continue;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int more = kAddsLate<Stored> ? mma::MatrixUnit::key_at(k) : 0;
        const int own = mma::MatrixUnit::key_at(quad_of(i) * 4 + k) - more;
        copied_[i][k] = cache.eight(rows, own, more, chunk_of(i) * 8);
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
