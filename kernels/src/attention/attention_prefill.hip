// Attention of several new tokens a sequence over the paged cache, with matrix instructions
// (FlashAttention-2, Dao 2023). The new tokens are the last ones of their context. Each sees what
// is before it and itself; rows of images that see each other both ways bring where they see to.
//
// A block takes kAttentionRows query rows of one kv head. A row is a token and one of the query
// heads that share the kv head: row r is token r / group, head r % group. It walks over the keys in
// tiles that all its waves read from LDS; each wave keeps the output of its own rows in registers,
// transposed (see mma_attention.h). K of the next tile travels during the second product, V during
// the first. Values of more than kAttentionValues elements are cut: a block has some of the columns
// of the result, and computes the scores again for each cut. Where few rows see many keys, or tiles
// of rows would be a round of few blocks, a block walks over a split of the keys only, and
// attention_reduce.hip puts the splits together.
#include "rf/attention/attention_warpgroup.h"
#include "rf/attention/online_softmax.h"
#include "rf/attention/prefill.h"
#include "rf/hidden.h"

namespace rf {

// Caps the scores; they stay in units of the product.
template <int kKeyTiles>
__device__ __forceinline__ void cap_scores(TileScores<kKeyTiles>& scores, const ScoreRule& rule) {
#pragma unroll
  for (TileValues& tile : scores) {
#pragma unroll
    for (float& score : tile) score = rule.capped(score * rule.scale) / rule.scale;
  }
}

// Where a query stands, and the last key that it sees.
struct SeenKeys {
  int position, last;
};

// Hides the keys behind that, and those before a query's window. Compared in this form, large heads
// have the registers for it on all targets; a first key that is ready takes more.
template <int kKeyTiles>
__device__ __forceinline__ void mask_scores(TileScores<kKeyTiles>& scores,
                                            const SeenKeys (&seen)[mma::MatrixUnit::kLaneColumns],
                                            int first_key, int window) {
#pragma unroll
  for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < kTileValues; ++i) {
      const SeenKeys& own = seen[mma::MatrixUnit::lane_column(i)];
      const int key = first_key + tile * kTile + mma::MatrixUnit::row(i);
      if (key > own.last || key < first_visible(own.position, window)) scores[tile][i] = -kInfinity;
    }
  }
}

enum class Operand { kKeys, kValues };

// The memory of a tile in LDS, which is the same in all passes of a block.
template <Operand kOperand, class Loader>
__device__ __forceinline__ half* tile_data() {
  alignas(16) __shared__ half data[Loader::kHalves];
  return data;
}

// Computes attention_columns(...) columns of the result, then the next of those that the block has.
// A block has one of kv_heads * cuts of the values: see PrefillPart.
template <class Stored, int kKeyDim, int kValueDim, bool kValuesInKeys, int kPass = 0>
__device__ __forceinline__ void attention_prefill(const PrefillInput& in,
                                                  const Cache<const Stored, const float>& cache,
                                                  const PrefillSplits& splits, float* out_f32,
                                                  half* out_f16) {
  using MatrixUnit = mma::MatrixUnit;
  constexpr int kKeys = attention_keys(kKeyDim, kValueDim);
  constexpr int kKeyTiles = kKeys / kTile;
  constexpr int kDimTiles = kKeyDim / kTile;
  constexpr int kColumns = attention_columns(kKeyDim, kValueDim);
  constexpr int kColumnTiles = kColumns / kTile;
  constexpr int kValues = attention_values(kValueDim);
  constexpr int kCuts = kValueDim / kValues;
  static_assert(kKeyDim % kTile == 0 && kColumns % kTile == 0);
  static_assert(kCuts * kValues == kValueDim && kValues % kColumns == 0);
  constexpr int kMostSplit = CacheType<Stored>::kHasScales ? kMaxScaledSplitDim : kMaxSplitDim;
  constexpr bool kMaySplit = kKeyDim <= kMostSplit && kValueDim <= kMostSplit;
  constexpr int kLaneColumns = MatrixUnit::kLaneColumns;
  constexpr bool kKeepsQueries = attention_keeps_queries(kKeyDim, kValueDim);
  constexpr int kScoreUnroll = kKeepsQueries ? kDimTiles : MatrixUnit::kReloadUnroll;
  using Key = typename CacheType<Stored>::Key;
  using Value = typename CacheType<Stored>::Value;
  using KeyLoader = RowLoader<Key, kKeyDim, kKeys>;
  using ValueLoader =
      typename ValueLoaderOf<MatrixUnit::kTransposedV, Value, kColumns, kKeys>::Type;

  const typename KeyLoader::Tile k_tile{tile_data<Operand::kKeys, KeyLoader>()};
  const typename ValueLoader::Tile v_tile{tile_data<Operand::kValues, ValueLoader>()};

  const PrefillPart own = PrefillPart::own(splits, cache.kv_heads * kCuts);
  const int sequence = in.sequences[own.number];
  const int query_start = in.query_start[sequence];
  const int tokens = in.query_start[sequence + 1] - query_start;
  const int context = in.context_len[sequence];
  const int group = in.heads / cache.kv_heads;
  const int rows = tokens * group;
  const int count = kMaySplit ? own.count : 1, split = own.split, block_row = own.first_row;
  if (block_row >= rows) return;

  const int kv_head = own.columns / kCuts;
  const int first_column = own.columns % kCuts * kValues + kPass * kColumns;

  const int wave_row = block_row + uniform(wave_id()) * (kTile * kWaveTiles);
  const int first_position = context - tokens;
  const auto position_of = [&](int row) { return first_position + min(row, rows - 1) / group; };
  const auto end_of = [&](int row) {  // of the keys that it sees; ascends with the rows
    const int token = min(row, rows - 1) / group;
    return in.seen_ends ? in.seen_ends[query_start + token] : first_position + token + 1;
  };
  const auto head_of = [&](int row) {  // of all heads of all tokens
    const int64_t token = query_start + row / group;
    return token * in.heads + kv_head * group + row % group;
  };

  const int wave_first = position_of(wave_row);
  const int wave_last = position_of(wave_row + kTile * kWaveTiles - 1);
  const int wave_end = wave_row < rows ? end_of(wave_row + kTile * kWaveTiles - 1) : 0;
  const int common_end = end_of(wave_row);
  // What this wave's rows, and this block's split of the keys, can see at all: [begin, end).
  int end = end_of(block_row + kAttentionRows - 1);
  int begin = first_visible(position_of(block_row), in.window) / kKeys * kKeys;
  if (count > 1) {  // the first one begins with what the first new token sees
    const int first = first_visible(first_position, in.window) / kKeys * kKeys;
    begin = max(begin, first + split * splits.tokens);
    end = min(end, first + (split + 1) * splits.tokens);
  }

  const half* query_rows[kWaveTiles][MatrixUnit::kQueryRows];
  typename MatrixUnit::B queries[kWaveTiles][kKeepsQueries ? kDimTiles : 1];
  SeenKeys seen[kWaveTiles][kLaneColumns];
#pragma unroll
  for (int tile = 0; tile < kWaveTiles; ++tile) {
    for (int i = 0; i < MatrixUnit::kQueryRows; ++i) {
      const int row = min(wave_row + tile * kTile + MatrixUnit::query_row(i), rows - 1);
      query_rows[tile][i] = in.q + head_of(row) * kKeyDim;
    }
#pragma unroll
    for (int dim = 0; kKeepsQueries && dim < kDimTiles; ++dim) {
      queries[tile][dim] = MatrixUnit::load_query(query_rows[tile], dim * kTile);
    }
    for (int lane_column = 0; lane_column < kLaneColumns; ++lane_column) {
      const int row = wave_row + tile * kTile + MatrixUnit::column(lane_column);
      seen[tile][lane_column] = {position_of(row), end_of(row) - 1};
    }
  }

  const CachedTokens tokens_of{cache.blocks_of(sequence), context, kv_head, cache.kv_heads};
  const HeadCache<Key, kKeyDim> keys{cache.k, cache.k_scale};
  constexpr int kValueRow = kValuesInKeys ? kKeyDim : kValueDim;
  static_assert(!CacheType<Stored>::kPacksValues || kColumns % kTurned == 0);
  const HeadCache<Value, kValueRow> values{
      cache.v + (kValueRow - kValueDim + first_column) / kPacked<Value>, cache.v_scale};
  KeyLoader key_loader;
  ValueLoader value_loader;
  TileSoftmax<kColumns> softmax[kWaveTiles];
  for (auto& tile : softmax) tile.reset();
  const float factor = in.rule.scale * kLog2E;

  TileRows<kKeys> rows_now = tokens_of.tile<kKeys>(begin);
  TileRows<kKeys> rows_next = tokens_of.tile<kKeys>(begin + kKeys);
  if (!kMaySplit || begin < end) key_loader.start(keys, rows_now, k_tile);
  for (int base = begin; base < end; base += kKeys) {
    key_loader.finish(k_tile);
    __syncthreads();  // K is there; all waves are done with the last V
    value_loader.start(values, rows_now, v_tile);

    const bool visible = base < wave_end && base + kKeys > first_visible(wave_first, in.window);
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
      const bool masked = base + kKeys > common_end || base < first_visible(wave_last, in.window);
#pragma unroll
      for (int tile = 0; tile < kWaveTiles; ++tile) {
        if (in.rule.softcap > 0.0f) cap_scores(scores[tile], in.rule);
        if (masked) mask_scores(scores[tile], seen[tile], base, in.window);
        softmax[tile].add(scores[tile], factor);
#pragma unroll
        for (int key = 0; key < kKeyTiles; ++key)
          weights[tile][key] = MatrixUnit::pack(scores[tile][key]);
      }
    }

    value_loader.finish(v_tile);
    __syncthreads();  // V is there; all waves are done with K
    if (base + kKeys < end) key_loader.start(keys, rows_next, k_tile);

    if (visible) {
#pragma unroll
      for (int column = 0; column < kColumnTiles; ++column) {
#pragma unroll
        for (int key = 0; key < kKeyTiles; ++key) {
          const typename MatrixUnit::A part =
              load_values<MatrixUnit>(v_tile, column * kTile, key * kTile);
#pragma unroll
          for (int tile = 0; tile < kWaveTiles; ++tile) {
            MatrixUnit::multiply(softmax[tile].output[column], part, weights[tile][key]);
          }
        }
      }
    }
    rows_now = rows_next;
    rows_next = tokens_of.tile<kKeys>(base + 2 * kKeys);
  }

  // Large heads have no registers in which what follows from these could wait for the end.
  const int end_row = hidden(wave_row), own_group = hidden(group);
  const auto result_of = [&](int row) {  // of all heads of all tokens, or of those that are split
    const int64_t head = kv_head * own_group + row % own_group;
    const int64_t token = row / own_group;
    if (count == 1) return (query_start + token) * in.heads + head;
    const int64_t place = static_cast<int64_t>(own.number) * splits.tokens_of(own_group) + token;
    return (place * in.heads + head) * count + split;
  };
#pragma unroll
  for (int tile = 0; tile < kWaveTiles; ++tile) {
    float inverse[kLaneColumns];
    for (int lane_column = 0; lane_column < kLaneColumns; ++lane_column) {
      const int row = min(end_row + tile * kTile + MatrixUnit::column(lane_column), rows - 1);
      const float total = MatrixUnit::over_column(softmax[tile].total[lane_column],
                                                  [](float a, float b) { return a + b; });
      const float reference = softmax[tile].reference(lane_column, factor);
      const int head = kv_head * own_group + row % own_group;
      const float* sinks = kValueDim <= kMaxSinkDim ? in.sinks : nullptr;
      inverse[lane_column] = 1.0f / (total + sink_weight(sinks, head, reference));
      if (count > 1) {
        inverse[lane_column] = 1.0f;
        if (first_column == 0 && end_row + tile * kTile + MatrixUnit::column(lane_column) < rows) {
          float* ml = splits.partial_ml + 2 * result_of(row);
          ml[0] = reference;
          ml[1] = total;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kTileValues; ++i) {
      const int row = end_row + tile * kTile + MatrixUnit::column(MatrixUnit::lane_column(i));
      if (row >= rows) continue;
      const int64_t start = result_of(row) * kValueDim + first_column + MatrixUnit::row(i);
      const auto store = [&]<class Element>(Element* out) {
#pragma unroll
        for (int column = 0; column < kColumnTiles; ++column) {
          const float value = softmax[tile].output[column][i] * inverse[MatrixUnit::lane_column(i)];
          out[start + column * kTile] = static_cast<Element>(value);
        }
      };
      float* const f32 = count > 1 ? splits.partial : out_f32;
      if (f32) store(f32);
      if (count == 1 && out_f16) store(out_f16);
    }
  }
  if constexpr ((kPass + 1) * kColumns < kValues) {
    attention_prefill<Stored, kKeyDim, kValueDim, kValuesInKeys, kPass + 1>(in, cache, splits,
                                                                            out_f32, out_f16);
  }
}

// Chooses between this and what the target has for such heads.
template <class Stored, int kKeyDim, int kValueDim, bool kValuesInKeys>
__device__ __forceinline__ void attend(const PrefillInput& in,
                                       const Cache<const Stored, const float>& cache,
                                       const PrefillSplits& splits, float* out_f32, half* out_f16) {
#if RF_WARPGROUPS
  constexpr bool kSquare =
      kKeyDim == kValueDim && (kKeyDim == 64 || kKeyDim == 128 || kKeyDim == 256);
  if constexpr (kSquare && !kValuesInKeys && sizeof(Stored) == 2) {
    using Attention = WarpgroupAttention<kKeyDim>;
    RF_LARGE_LDS(typename Attention::Lds, lds);
    Attention::run(in, cache, splits, out_f32, out_f16, *lds);
    return;
  }
#endif
  attention_prefill<Stored, kKeyDim, kValueDim, kValuesInKeys>(in, cache, splits, out_f32, out_f16);
}

}  // namespace rf

// RF_HEAD is the head size of this translation unit, RF_KEY_DIM and RF_VALUE_DIM its elements,
// RF_VALUES_IN_KEYS whether v_cache is k_cache, with values as the end of its rows.
#define RF_NAME(kind, head) rf_attention_prefill_##kind##_##head

// Two blocks of small heads fill each other's waits; larger heads have registers for one.
#if RF_WARPGROUPS && RF_KEY_DIM == 64
#define RF_F16_BOUNDS __launch_bounds__(rf::kPrefillThreads, 2)
#else
#define RF_F16_BOUNDS __launch_bounds__(rf::kPrefillThreads)
#endif

#define RF_ATTENTION_PREFILL_F16(head)                                                             \
  extern "C" __global__ RF_F16_BOUNDS void RF_NAME(f16, head)(                                     \
      const rf::half* __restrict__ q, const rf::half* __restrict__ k_cache,                        \
      const rf::half* __restrict__ v_cache, const int32_t* __restrict__ block_table,               \
      const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,              \
      const int32_t* __restrict__ context_len, const int32_t* __restrict__ seen_ends,              \
      const float* __restrict__ sinks, float* __restrict__ out_f32,                                \
      rf::half* __restrict__ out_f16, float* __restrict__ partial, float* __restrict__ partial_ml, \
      int32_t split_tiles, int32_t splits, int32_t split_tokens, int32_t blocks_per_sequence,      \
      int32_t heads, int32_t kv_heads, int32_t window, float scale, float softcap) {               \
    rf::attend<rf::half, RF_KEY_DIM, RF_VALUE_DIM, RF_VALUES_IN_KEYS>(                             \
        {q,                                                                                        \
         sequences,                                                                                \
         query_start,                                                                              \
         context_len,                                                                              \
         seen_ends,                                                                                \
         sinks,                                                                                    \
         heads,                                                                                    \
         window,                                                                                   \
         {scale, softcap}},                                                                        \
        {k_cache, v_cache, nullptr, nullptr, block_table, blocks_per_sequence, kv_heads},          \
        {partial, partial_ml, split_tiles, splits, split_tokens}, out_f32, out_f16);               \
  }

#define RF_ATTENTION_PREFILL_SCALED(kind, Stored, head)                                            \
  extern "C" __global__ __launch_bounds__(rf::kPrefillThreads) void RF_NAME(kind, head)(           \
      const rf::half* __restrict__ q, const rf::CacheType<Stored>::Key* __restrict__ k_cache,      \
      const rf::CacheType<Stored>::Value* __restrict__ v_cache, const float* __restrict__ k_scale, \
      const float* __restrict__ v_scale, const int32_t* __restrict__ block_table,                  \
      const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,              \
      const int32_t* __restrict__ context_len, const int32_t* __restrict__ seen_ends,              \
      const float* __restrict__ sinks, float* __restrict__ out_f32,                                \
      rf::half* __restrict__ out_f16, float* __restrict__ partial, float* __restrict__ partial_ml, \
      int32_t split_tiles, int32_t splits, int32_t split_tokens, int32_t blocks_per_sequence,      \
      int32_t heads, int32_t kv_heads, int32_t window, float scale, float softcap) {               \
    rf::attention_prefill<Stored, RF_KEY_DIM, RF_VALUE_DIM, RF_VALUES_IN_KEYS>(                    \
        {q,                                                                                        \
         sequences,                                                                                \
         query_start,                                                                              \
         context_len,                                                                              \
         seen_ends,                                                                                \
         sinks,                                                                                    \
         heads,                                                                                    \
         window,                                                                                   \
         {scale, softcap}},                                                                        \
        {k_cache, v_cache, k_scale, v_scale, block_table, blocks_per_sequence, kv_heads},          \
        {partial, partial_ml, split_tiles, splits, split_tokens}, out_f32, out_f16);               \
  }

RF_ATTENTION_PREFILL_F16(RF_HEAD)
RF_ATTENTION_PREFILL_SCALED(int8, int8_t, RF_HEAD)
#if RF_IS_COMMON
RF_ATTENTION_PREFILL_SCALED(k8v4, rf::K8V4, RF_HEAD)
#endif
