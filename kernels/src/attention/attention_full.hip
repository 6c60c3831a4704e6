// Attention of all tokens of a sequence to all of them, or to those within reach, without a cache.
//
// As attention_prefill.hip: a block takes 128 tokens of one head, walks over the keys in tiles that
// all its waves read from LDS, and each wave keeps the output of its own rows in registers,
// transposed (see mma_attention.h). K of the next tile travels during the second product, V during
// the first. Tiles that no row sees are left out; what follows the last token is masked.
#include "rf/attention/online_softmax.h"

namespace rf {

// A half of the activations, where a kernel for the cache has the type that is stored.
struct Activated {
  half value;
};

// Where the keys or values of one sequence and head lie among the activations.
template <int kHeadDim>
struct HeadCache<Activated, kHeadDim> {
  const half* data;  // of the first token
  int64_t stride;    // halves between tokens
  int tokens;

  // Tokens beyond the last are the last one again. first: of the tile.
  __device__ __forceinline__ const half* address(int first, int token, int more, int dim) const {
    return data + static_cast<int64_t>(min(first + token + more, tokens - 1)) * stride + dim;
  }
  __device__ __forceinline__ Vec<half, 8> eight(int first, int token, int more, int dim) const {
    return load16(address(first, token, more, dim));
  }
};

struct FullInput {
  const half *q, *k, *v;  // rows of tokens, these strides apart
  int64_t q_stride, k_stride, v_stride;
  const int32_t* query_start;  // [B + 1]
  float scale;
  int group;            // heads of queries that share keys and values
  int reach;            // a token sees so many before and after it; 0 = all
  const float* slopes;  // [heads], what a score loses for each token of distance; null = nothing
};

struct KeyRange {
  int begin, end;
};

// The keys that a row of a sequence can see.
__device__ __forceinline__ KeyRange keys_seen(int row, int tokens, int reach) {
  if (reach == 0) return {0, tokens};
  return {max(0, row - reach), min(tokens, row + reach + 1)};
}

// Takes from the scores of 16 rows what the distance of the keys costs (ALiBi, Press et al. 2022).
// Distances are sums of floats, which are exact here: sums of integers the compiler would keep in
// registers for all values.
template <int kKeyTiles>
__device__ __forceinline__ void bias_scores(TileScores<kKeyTiles>& scores, int first_row,
                                            int first_key, float slope) {
  using MatrixUnit = mma::MatrixUnit;
  const int lane_row = first_row + MatrixUnit::column(0), lane_key = first_key + MatrixUnit::row(0);
  const auto ahead = static_cast<float>(lane_key - lane_row);  // of value 0
#pragma unroll
  for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < kTileValues; ++i) {
      const int keys = tile * kTile + MatrixUnit::row(i) - MatrixUnit::row(0);
      const int rows = MatrixUnit::column(MatrixUnit::lane_column(i)) - MatrixUnit::column(0);
      scores[tile][i] -= slope * abs(ahead + static_cast<float>(keys - rows));
    }
  }
}

// Hides the keys that each of 16 rows cannot see.
template <int kKeyTiles>
__device__ __forceinline__ void mask_scores(TileScores<kKeyTiles>& scores, int first_row,
                                            int first_key, int tokens, int reach) {
  KeyRange seen[mma::MatrixUnit::kLaneColumns];
  for (int lane_column = 0; lane_column < mma::MatrixUnit::kLaneColumns; ++lane_column) {
    seen[lane_column] = keys_seen(first_row + mma::MatrixUnit::column(lane_column), tokens, reach);
  }
#pragma unroll
  for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < kTileValues; ++i) {
      const KeyRange& own = seen[mma::MatrixUnit::lane_column(i)];
      const int key = first_key + tile * kTile + mma::MatrixUnit::row(i);
      if (key < own.begin || key >= own.end) scores[tile][i] = -kInfinity;
    }
  }
}

// Grid: (tiles of kAttentionRows tokens that the longest sequence needs, heads, sequences).
template <int kHeadDim, bool kNear>
__device__ __forceinline__ void attention_full(const FullInput& in, half* out) {
  using MatrixUnit = mma::MatrixUnit;
  // The registers of another tile of keys are what large heads lack for distances.
  constexpr int kKeys = kNear && kHeadDim > 128 ? kTile : attention_keys(kHeadDim, kHeadDim);
  constexpr int kKeyTiles = kKeys / kTile;
  constexpr int kDimTiles = kHeadDim / kTile;
  constexpr int kLaneColumns = MatrixUnit::kLaneColumns;
  constexpr bool kKeepsQueries = attention_keeps_queries(kHeadDim, kHeadDim);
  constexpr int kScoreUnroll = kKeepsQueries ? kDimTiles : MatrixUnit::kReloadUnroll;
  using KeyLoader = RowLoader<Activated, kHeadDim, kKeys>;
  using ValueLoader =
      typename ValueLoaderOf<MatrixUnit::kTransposedV, Activated, kHeadDim, kKeys>::Type;

  alignas(16) __shared__ half k_lds[KeyLoader::kHalves];
  alignas(16) __shared__ half v_lds[ValueLoader::kHalves];
  const typename KeyLoader::Tile k_tile{k_lds};
  const typename ValueLoader::Tile v_tile{v_lds};

  const int64_t start = in.query_start[blockIdx.z];
  const int tokens = in.query_start[blockIdx.z + 1] - static_cast<int>(start);
  const int block_row = static_cast<int>(blockIdx.x) * kAttentionRows;
  if (block_row >= tokens) return;
  const int head = blockIdx.y;
  const int wave_row = block_row + uniform(wave_id()) * (kTile * kWaveTiles);
  const int wave_last = min(wave_row + kTile * kWaveTiles, tokens) - 1;

  // What rows of this wave can see at all, what all of them can, and what this block can.
  const KeyRange first = keys_seen(wave_row, tokens, in.reach);
  const KeyRange last = keys_seen(wave_last, tokens, in.reach);
  const KeyRange seen{first.begin, wave_row < tokens ? last.end : 0};
  const KeyRange common{last.begin, first.end};
  const int end = keys_seen(block_row + kAttentionRows - 1, tokens, in.reach).end;
  const int begin = keys_seen(block_row, tokens, in.reach).begin / kKeys * kKeys;

  const half* query_rows[kWaveTiles][MatrixUnit::kQueryRows];
  typename MatrixUnit::B queries[kWaveTiles][kKeepsQueries ? kDimTiles : 1];
#pragma unroll
  for (int tile = 0; tile < kWaveTiles; ++tile) {
    for (int i = 0; i < MatrixUnit::kQueryRows; ++i) {
      const int row = min(wave_row + tile * kTile + MatrixUnit::query_row(i), tokens - 1);
      query_rows[tile][i] = in.q + (start + row) * in.q_stride + head * kHeadDim;
    }
#pragma unroll
    for (int dim = 0; kKeepsQueries && dim < kDimTiles; ++dim) {
      queries[tile][dim] = MatrixUnit::load_query(query_rows[tile], dim * kTile);
    }
  }

  const int column = head / in.group * kHeadDim;  // of keys and values
  const HeadCache<Activated, kHeadDim> keys{in.k + start * in.k_stride + column, in.k_stride,
                                            tokens};
  const HeadCache<Activated, kHeadDim> values{in.v + start * in.v_stride + column, in.v_stride,
                                              tokens};
  KeyLoader key_loader;
  ValueLoader value_loader;
  TileSoftmax<kHeadDim> softmax[kWaveTiles];
  for (auto& tile : softmax) tile.reset();
  const float factor = in.scale * kLog2E;
  const float slope = in.slopes ? in.slopes[head] / in.scale : 0.0f;  // scores are of the product

  key_loader.start(keys, begin, k_tile);
  for (int base = begin; base < end; base += kKeys) {
    key_loader.finish(k_tile);
    __syncthreads();  // K is there; all waves are done with the last V
    value_loader.start(values, base, v_tile);

    const bool visible = base < seen.end && base + kKeys > seen.begin;
    typename MatrixUnit::B weights[kWaveTiles][kKeyTiles];
    if (visible) {
      TileScores<kKeyTiles> scores[kWaveTiles] = {};
#pragma unroll kScoreUnroll
      for (int dim = 0; dim < kDimTiles; ++dim) {
        if constexpr (!kKeepsQueries) {
#pragma unroll
          for (int tile = 0; tile < kWaveTiles; ++tile) {
            queries[tile][0] = MatrixUnit::load_query(query_rows[tile], dim * kTile);
          }
        }
#pragma unroll
        for (int key = 0; key < kKeyTiles; ++key) {
          const typename MatrixUnit::A part = MatrixUnit::load(k_tile, key * kTile, dim * 2);
#pragma unroll
          for (int tile = 0; tile < kWaveTiles; ++tile) {
            MatrixUnit::multiply(scores[tile][key], part, queries[tile][kKeepsQueries ? dim : 0]);
          }
        }
      }
      // Tiles that all rows see in full need no mask.
      const bool masked = base < common.begin || base + kKeys > common.end;
#pragma unroll
      for (int tile = 0; tile < kWaveTiles; ++tile) {
        const int first_row = wave_row + tile * kTile;
        if (in.slopes) bias_scores(scores[tile], first_row, base, slope);
        if (masked) mask_scores(scores[tile], first_row, base, tokens, in.reach);
        softmax[tile].add(scores[tile], factor);
#pragma unroll
        for (int key = 0; key < kKeyTiles; ++key)
          weights[tile][key] = MatrixUnit::pack(scores[tile][key]);
      }
    }

    value_loader.finish(v_tile);
    __syncthreads();  // V is there; all waves are done with K
    if (base + kKeys < end) key_loader.start(keys, base + kKeys, k_tile);

    if (visible) {
#pragma unroll
      for (int dim = 0; dim < kDimTiles; ++dim) {
#pragma unroll
        for (int key = 0; key < kKeyTiles; ++key) {
          const typename MatrixUnit::A part =
              load_values<MatrixUnit>(v_tile, dim * kTile, key * kTile);
#pragma unroll
          for (int tile = 0; tile < kWaveTiles; ++tile) {
            MatrixUnit::multiply(softmax[tile].output[dim], part, weights[tile][key]);
          }
        }
      }
    }
  }

#pragma unroll
  for (int tile = 0; tile < kWaveTiles; ++tile) {
    float inverse[kLaneColumns];
    for (int lane_column = 0; lane_column < kLaneColumns; ++lane_column) {
      inverse[lane_column] = 1.0f / MatrixUnit::over_column(softmax[tile].total[lane_column],
                                                            [](float a, float b) { return a + b; });
    }
#pragma unroll
    for (int i = 0; i < kTileValues; ++i) {
      const int row = wave_row + tile * kTile + MatrixUnit::column(MatrixUnit::lane_column(i));
      if (row >= tokens) continue;
      const int64_t to = ((start + row) * gridDim.y + head) * kHeadDim + MatrixUnit::row(i);
#pragma unroll
      for (int dim = 0; dim < kDimTiles; ++dim) {
        out[to + dim * kTile] =
            to_half(softmax[tile].output[dim][i] * inverse[MatrixUnit::lane_column(i)]);
      }
    }
  }
}

}  // namespace rf

// q, k, v: halves, a row for each of T tokens with its heads one after the other; rows are so many
// halves apart (multiples of 8). query_start: [B + 1], where each sequence begins. out: halves
// [T, heads * head_dim]. So many heads of queries as `group` says share keys and values. Grid:
// (ceil(longest / 128), heads, B), block 256. RF_HEAD is the head size of this translation unit,
// RF_KEY_DIM its elements, of values as of keys.
//
// The second kernel takes distance into account. reach: a token sees so many tokens before and
// after it; 0 = all. slopes: f32 [heads], what a score (scale * product) loses for each token of
// distance, or null. It is one of its own as the first is faster without the registers for that.
#define RF_NAME(kind, head) rf_attention_##kind##_##head

#define RF_ATTENTION_FULL(head, head_dim)                                                        \
  extern "C" __global__ __launch_bounds__(rf::kPrefillThreads) void RF_NAME(full, head)(         \
      const rf::half* __restrict__ q, const rf::half* __restrict__ k,                            \
      const rf::half* __restrict__ v, const int32_t* __restrict__ query_start,                   \
      rf::half* __restrict__ out, int64_t q_stride, int64_t k_stride, int64_t v_stride,          \
      float scale, int32_t group) {                                                              \
    rf::attention_full<head_dim, false>(                                                         \
        {q, k, v, q_stride, k_stride, v_stride, query_start, scale, group, 0, nullptr}, out);    \
  }                                                                                              \
  extern "C" __global__ __launch_bounds__(rf::kPrefillThreads) void RF_NAME(full_near, head)(    \
      const rf::half* __restrict__ q, const rf::half* __restrict__ k,                            \
      const rf::half* __restrict__ v, const int32_t* __restrict__ query_start,                   \
      rf::half* __restrict__ out, int64_t q_stride, int64_t k_stride, int64_t v_stride,          \
      float scale, int32_t group, int32_t reach, const float* __restrict__ slopes) {             \
    rf::attention_full<head_dim, true>(                                                          \
        {q, k, v, q_stride, k_stride, v_stride, query_start, scale, group, reach, slopes}, out); \
  }

static_assert(RF_KEY_DIM == RF_VALUE_DIM);
RF_ATTENTION_FULL(RF_HEAD, RF_KEY_DIM)
