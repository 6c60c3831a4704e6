// The softmax of attention with matrix instructions, tile by tile of keys (FlashAttention-2, Dao
// 2023), and how many keys a tile has.
#pragma once

#include "rf/attention/attention.h"
#include "rf/attention/cache_tiles.h"
#include "rf/attention/prefill.h"
#include "rf/wave.h"

namespace rf {

inline constexpr int kAttentionValues = 256;  // elements of values whose results a block has
// Elements of the largest heads that may have a sink, and whose keys may be split among blocks, in
// caches of halves and with scales: larger ones use all registers of some GPUs.
inline constexpr int kMaxSinkDim = 128;
inline constexpr int kMaxSplitDim = 256;
inline constexpr int kMaxScaledSplitDim = 128;
inline constexpr int kAttentionWaves = kPrefillThreads / kWave;
inline constexpr int kWaveTiles = kAttentionRows / kTile / kAttentionWaves;  // of 16 query rows

// Values of more elements than kAttentionValues are cut: a block has the results of some of them.
constexpr int attention_values(int value_dim) {
  return value_dim < kAttentionValues ? value_dim : kAttentionValues;
}
// Columns of these results that are computed at once.
constexpr int attention_columns(int key_dim, int value_dim) {
  return key_dim > 256 ? mma::MatrixUnit::kLargestHeadColumns : attention_values(value_dim);
}

// Registers of a lane that its queries and its output take. Where these would fill up, a step takes
// fewer keys, and the queries are loaded again for every tile of keys, which costs a fraction of
// the time of the products. The largest heads take 16 keys, so that LDS has room for two blocks.
constexpr int attention_registers(int key_dim, int value_dim) {
  return kWaveTiles *
         (key_dim / kTile * static_cast<int>(sizeof(mma::MatrixUnit::B)) +
          attention_columns(key_dim, value_dim) / kTile * static_cast<int>(sizeof(TileValues))) /
         4;
}
constexpr int attention_keys(int key_dim, int value_dim) {
  if (key_dim > 256) return kTile;
  if (key_dim > 128) return mma::MatrixUnit::kLargeHeadKeys;
  return attention_registers(key_dim, value_dim) < mma::MatrixUnit::kFullTileRegisters ? 64 : 32;
}
constexpr bool attention_keeps_queries(int key_dim, int value_dim) {
  return attention_registers(key_dim, value_dim) <= mma::MatrixUnit::kKeptQueryRegisters;
}

// The scores of kKeyTiles tiles of keys for one tile of queries of a wave, and then their weights.
template <int kKeyTiles>
using TileScores = TileValues[kKeyTiles];

// The softmax of one tile of queries over the keys so far. Scores stay in units of the product:
// exp2(factor * (score - highest) + kWeightBits) is one fused multiply-add and one exp2. Weights
// become halves, which below 2^-14 have fewer bits or count as zero (kFlushesHalves): so the
// highest is not 1 but as large as halves allow. Of many keys, small weights are much together.
template <int kColumns>
struct TileSoftmax {
  static constexpr int kLaneColumns = mma::MatrixUnit::kLaneColumns;
  static constexpr float kWeightBits = 15.0f;
  float highest[kLaneColumns];
  float total[kLaneColumns];  // of this lane's keys
  TileValues output[kColumns / kTile];

  __device__ __forceinline__ void reset() {
    for (int lane_column = 0; lane_column < kLaneColumns; ++lane_column) {
      highest[lane_column] = kLowestScore;
      total[lane_column] = 0.0f;
    }
    for (TileValues& tile : output) {
      for (float& value : tile) value = 0.0f;
    }
  }

  // The score, in units of log2, whose weight is 1.
  __device__ __forceinline__ float reference(int lane_column, float factor) const {
    return highest[lane_column] * factor - kWeightBits;
  }

  // Turns scores into weights relative to the new highest score.
  template <int kKeyTiles>
  __device__ __forceinline__ void add(TileScores<kKeyTiles>& scores, float factor) {
    float shift[kLaneColumns];  // of the exponent, per column
    float raised[kLaneColumns];
    bool any_raised = false;
#pragma unroll
    for (int lane_column = 0; lane_column < kLaneColumns; ++lane_column) {
      float largest = highest[lane_column];
#pragma unroll
      for (int i = 0; i < kKeyTiles * kTileValues; ++i) {
        const int value = i % kTileValues;
        if (mma::MatrixUnit::lane_column(value) == lane_column) {
          largest = max(largest, scores[i / kTileValues][value]);
        }
      }
      largest = mma::MatrixUnit::over_column(largest, [](float a, float b) { return max(a, b); });
      any_raised |= largest > highest[lane_column];
      raised[lane_column] = exp2((highest[lane_column] - largest) * factor);
      highest[lane_column] = largest;
      shift[lane_column] = reference(lane_column, factor);
    }
    if (ballot(any_raised) != 0) {
#pragma unroll
      for (int lane_column = 0; lane_column < kLaneColumns; ++lane_column)
        total[lane_column] *= raised[lane_column];
#pragma unroll
      for (TileValues& tile : output) {
#pragma unroll
        for (int i = 0; i < kTileValues; ++i) tile[i] *= raised[mma::MatrixUnit::lane_column(i)];
      }
    }
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < kTileValues; ++i) {
        const int lane_column = mma::MatrixUnit::lane_column(i);
        scores[tile][i] = exp2(fma(scores[tile][i], factor, -shift[lane_column]));
        total[lane_column] += scores[tile][i];
      }
    }
  }
};

}  // namespace rf
