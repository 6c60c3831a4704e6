// Prefill attention with the matrix instructions of Hopper GPUs (FlashAttention-3, Shah et al.
// 2024, without its own warps for copies).
//
// Four waves together take 64 query rows, so queries are the left operand here, from LDS, and
// weights go from one product to the next in registers. The scores of the next tile of keys and the
// product of this tile's weights with its values are begun together; meanwhile the waves begin to
// copy what comes next, and then compute the weights of the next tile. Lanes are what the matrix
// unit waits for here, so that copies take as few instructions as they can.
#pragma once

#include "rf/attention/online_softmax.h"
#include "rf/attention/prefill.h"
#include "rf/mma/warpgroup.h"

#if RF_WARPGROUPS

namespace rf {

template <int kHeadDim>
class WarpgroupAttention {
  static constexpr int kKeys = 64;  // of a tile
  static constexpr int kTileBlocks = kKeys / kBlockTokens;

 public:
  struct alignas(warpgroup::kTileAlignment) Lds {
    half keys[2][kKeys * kHeadDim];
    half values[2][kKeys * kHeadDim];
    half queries[kAttentionRows * kHeadDim];
  };

  static __device__ __forceinline__ void run(const PrefillInput& in,
                                             const Cache<const half, const float>& cache,
                                             const PrefillSplits& splits, float* out_f32,
                                             half* out_f16, Lds& lds) {
    const PrefillPart own = PrefillPart::own(splits, cache.kv_heads);
    const int sequence = in.sequences[own.number];
    const int query_start = in.query_start[sequence];
    const int tokens = in.query_start[sequence + 1] - query_start;
    const int context = in.context_len[sequence];
    const int group = in.heads / cache.kv_heads;
    const int rows = tokens * group;
    const int count = own.count, split = own.split, block_row = own.first_row;
    if (block_row >= rows) return;
    const int kv_head = own.columns;

    const int first_row = block_row + warpgroup::own_index() * 64;  // of the four waves
    const int wave_row = block_row + wave_id() * kTile;
    const int first_position = context - tokens;
    const auto position_of = [&](int row) __attribute__((always_inline)) {
      return first_position + min(row, rows - 1) / group;
    };
    const auto end_of = [&](int row) __attribute__((always_inline)) {
      const int token = min(row, rows - 1) / group;
      return in.seen_ends ? in.seen_ends[query_start + token] : first_position + token + 1;
    };
    const auto head_of = [&](int row)
                             __attribute__((always_inline)) {  // of all heads of all tokens
                               const int64_t token = query_start + row / group;
                               return token * in.heads + kv_head * group + row % group;
                             };
    const auto result_of =
        [&](int row) __attribute__((always_inline)) {  // the same, or of what is split
          if (count == 1) return head_of(row);
          const int64_t token =
              static_cast<int64_t>(own.number) * splits.tokens_of(group) + row / group;
          const int head = kv_head * group + row % group;
          return (token * in.heads + head) * count + split;
        };
    const auto row_of = [&](int r) __attribute__((always_inline)) {
      return wave_row + lane_id() / 4 + 8 * r;
    };

    const int common_end = end_of(first_row);
    const int last = position_of(first_row + 63);
    int end = end_of(block_row + kAttentionRows - 1);
    int begin = first_visible(position_of(block_row), in.window) / kKeys * kKeys;
    if (count > 1) {  // the first one begins with what the first new token sees
      const int first = first_visible(first_position, in.window) / kKeys * kKeys;
      begin = max(begin, first + split * splits.tokens);
      end = min(end, first + (split + 1) * splits.tokens);
    }
    const auto query = [&](int row) __attribute__((always_inline)) {
      return in.q + head_of(min(row, rows - 1)) * kHeadDim;
    };
    const int seen_begin[2] = {first_visible(position_of(row_of(0)), in.window),
                               first_visible(position_of(row_of(1)), in.window)};
    const int seen_end[2] = {min(end_of(row_of(0)), end), min(end_of(row_of(1)), end)};
    const SwizzledTile<kAttentionRows> query_tile{lds.queries};
    const warpgroup::Descriptor own_queries =
        warpgroup::behind(query_tile.descriptor(), (first_row - block_row) * 128);
    constexpr int kChunks = kHeadDim / 8;
#pragma unroll 4
    for (int i = threadIdx.x; i < kAttentionRows * kChunks; i += kPrefillThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      async_copy16(query_tile.chunk(row, chunk), query(block_row + row) + chunk * 8);
    }

    const int32_t* const blocks = cache.blocks_of(sequence);
    const CachedRows keys(cache.k, kv_head, cache.kv_heads);
    const CachedRows values(cache.v, kv_head, cache.kv_heads);
    const auto k_tile = [&](int i) __attribute__((always_inline)) {
      return SwizzledTile<kKeys>{lds.keys[i]};
    };
    const auto v_tile = [&](int i) __attribute__((always_inline)) {
      return SwizzledTile<kKeys>{lds.values[i]};
    };
    const auto copy = [&](const CachedRows& rows, int first_token,
                          SwizzledTile<kKeys> tile) __attribute__((always_inline)) {
      if (first_token + kKeys <= context) {
        rows.copy(blocks + first_token / kBlockTokens, tile);
      } else {
        rows.copy_rest(blocks + first_token / kBlockTokens, context - first_token, tile);
      }
    };
    const float factor = in.rule.scale * kLog2E;

    Mma::Acc output[kHeadDim / kTile] = {};
    Mma::Acc scores[kKeys / kTile] = {};
    uint32_t weights[kKeys / kTile][4];
    float highest[2] = {kLowestScore, kLowestScore}, total[2] = {};

    // Turns the scores of the keys from `base` on into weights relative to the new highest score;
    // returns by how much older weights shrink.
    float raised[2] = {1.0f, 1.0f};
    const auto weigh = [&](int base) __attribute__((always_inline)) {
      if (in.rule.softcap > 0.0f) {
#pragma unroll
        for (Mma::Acc& tile : scores) {
          for (float& score : tile.value)
            score = in.rule.capped(score * in.rule.scale) / in.rule.scale;
        }
      }
      const bool is_cut = base + kKeys > min(common_end, end);
      if (is_cut || base < first_visible(last, in.window)) {
#pragma unroll
        for (int tile = 0; tile < kKeys / kTile; ++tile) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const int row = i / 2 % 2;
            const int key = base + tile * kTile + i / 4 * 8 + lane_id() % 4 * 2 + i % 2;
            if (key >= seen_end[row] || key < seen_begin[row]) scores[tile].value[i] = -kInfinity;
          }
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float largest = highest[r];
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) {
          if (i / 2 % 2 == r) largest = max(largest, scores[i / 8].value[i % 8]);
        }
        largest = max(largest, shfl_xor<1>(largest));
        largest = max(largest, shfl_xor<2>(largest));
        raised[r] = exp2((highest[r] - largest) * factor);
        highest[r] = largest;
        const float shift = largest * factor;
        total[r] *= raised[r];
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) {
          if (i / 2 % 2 != r) continue;
          float& score = scores[i / 8].value[i % 8];
          score = exp2(fma(score, factor, -shift));
          total[r] += score;
        }
      }
    };
    const auto pack = [&]() __attribute__((always_inline)) {
#pragma unroll
      for (int tile = 0; tile < kKeys / kTile; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = scores[tile].value + 2 * i;
          weights[tile][i] =
              __builtin_bit_cast(uint32_t, Vec<half, 2>{to_half(pair[0]), to_half(pair[1])});
        }
      }
    };
    const auto begin_scores = [&](warpgroup::Descriptor tile) __attribute__((always_inline)) {
#pragma unroll
      for (int dim = 0; dim < kHeadDim / kTile; ++dim) {
        const auto at = [&](warpgroup::Descriptor whole,
                            int column_bytes) __attribute__((always_inline)) {
          return warpgroup::behind(whole, dim / 4 * column_bytes + dim % 4 * 32);
        };
        const warpgroup::Descriptor from =
            at(own_queries, SwizzledTile<kAttentionRows>::kColumnBytes);
        const warpgroup::Descriptor keys_at = at(tile, SwizzledTile<kKeys>::kColumnBytes);
        dim == 0 ? warpgroup::multiply<false>(scores, from, keys_at)
                 : warpgroup::multiply(scores, from, keys_at);
      }
      warpgroup::commit();
    };
    const auto begin_output = [&](warpgroup::Descriptor tile) __attribute__((always_inline)) {
#pragma unroll
      for (int key = 0; key < kKeys / kTile; ++key) {
        warpgroup::multiply<true, true>(output, weights[key],
                                        warpgroup::behind(tile, key * kTile * 128));
      }
      warpgroup::commit();
    };

    if (begin < end) {
      copy(keys, begin, k_tile(0));
      async_commit();
      copy(values, begin, v_tile(0));
      if (begin + kKeys < end) copy(keys, begin + kKeys, k_tile(1));
      async_commit();
      async_wait<1>();
      warpgroup::publish();
      __syncthreads();
      warpgroup::begin();
      begin_scores(k_tile(0).descriptor());
      warpgroup::wait<0>();
      warpgroup::receive(scores);
      weigh(begin);
      pack();
    }
    int buffer = 0;
    // Values and the next keys are there after this, and what was before them is read.
    const auto arrive = [&]() __attribute__((always_inline)) {
      async_wait();
      warpgroup::publish();
      __syncthreads();
      warpgroup::begin();
    };
    for (int next = begin + kKeys; next < end; next += kKeys) {
      arrive();
      begin_scores(k_tile(1 - buffer).descriptor());
      begin_output(v_tile(buffer).descriptor());
      // Products are under way while addresses are computed.
      copy(values, next, v_tile(1 - buffer));
      if (next + kKeys < end) copy(keys, next + kKeys, k_tile(buffer));
      async_commit();
      warpgroup::wait<1>();
      warpgroup::receive(scores);
      weigh(next);
      // In both branches, so that no compiler lets weights wait for what they do not need.
      if (ballot(raised[0] < 1.0f || raised[1] < 1.0f) != 0) {
        warpgroup::wait<0>();
        warpgroup::receive(output);
#pragma unroll
        for (int i = 0; i < kHeadDim / 2; ++i) output[i / 8].value[i % 8] *= raised[i / 2 % 2];
      } else {
        warpgroup::wait<0>();
        warpgroup::receive(output);
      }
      pack();
      buffer = 1 - buffer;
    }
    if (begin < end) {
      arrive();
      begin_output(v_tile(buffer).descriptor());
      warpgroup::wait<0>();
    }
    warpgroup::receive(output);

#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total[r] += shfl_xor<1>(total[r]);
      total[r] += shfl_xor<2>(total[r]);
      const int row = row_of(r);
      if (row >= rows) continue;
      const int64_t result = result_of(row);
      const float scaled = highest[r] * factor;
      float inverse = 1.0f;
      if (count == 1) {
        inverse = 1.0f / (total[r] + sink_weight(in.sinks, kv_head * group + row % group, scaled));
      } else if (lane_id() % 4 == 0) {
        splits.partial_ml[2 * result] = scaled;
        splits.partial_ml[2 * result + 1] = total[r];
      }
      const int64_t start = result * kHeadDim + lane_id() % 4 * 2;
#pragma unroll
      for (int i = 0; i < kHeadDim / 8; ++i) {
        const float* pair = output[i / 2].value + i % 2 * 4 + 2 * r;
        const Vec<float, 2> two{pair[0] * inverse, pair[1] * inverse};
        float* const f32 = count > 1 ? splits.partial : out_f32;
        if (f32) *reinterpret_cast<Vec<float, 2>*>(f32 + start + 8 * i) = two;
        if (count == 1 && out_f16) {
          *reinterpret_cast<Vec<half, 2>*>(out_f16 + start + 8 * i) = {static_cast<half>(two[0]),
                                                                       static_cast<half>(two[1])};
        }
      }
    }
  }

 private:
  // Keys or values of a head in the cache. A lane copies a chunk of 16 bytes of every kRows-th row:
  // all that differs between its rows of a block is known to the compiler.
  class CachedRows {
   public:
    __device__ __forceinline__ CachedRows(const half* data, int head, int heads)
        : data_(data + (head * kBlockTokens + own_row()) * kHeadDim + own_chunk() * 8),
          block_bytes_(heads * kBlockTokens * kHeadDim * static_cast<int>(sizeof(half))) {}

    // Begins to copy the rows of kTileBlocks blocks.
    __device__ __forceinline__ void copy(const int32_t* blocks, SwizzledTile<kKeys> tile) const {
      half* const to = tile.chunk(own_row(), own_chunk());
      int32_t read[kTileBlocks];
#pragma unroll
      for (int block = 0; block < kTileBlocks; ++block) read[block] = blocks[block];
#pragma unroll
      for (int block = 0; block < kTileBlocks; ++block) {
        const half* const from = of_block(read[block]);
#pragma unroll
        for (int row = 0; row < kBlockTokens; row += kRows) {
          warpgroup::async_copy<16>(to + (block * kBlockTokens + row) * 64, from + row * kHeadDim);
        }
      }
    }

    // Begins to copy `tokens` rows, fewer than a tile has, and zeros behind them.
    __device__ __forceinline__ void copy_rest(const int32_t* blocks, int tokens,
                                              SwizzledTile<kKeys> tile) const {
      half* const to = tile.chunk(own_row(), own_chunk());
#pragma unroll 1
      for (int row = 0; row < kKeys; row += kRows) {
        const int block = min(row, tokens - 1) / kBlockTokens;
        warpgroup::async_copy<16>(to + row * 64,
                                  of_block(blocks[block]) + row % kBlockTokens * kHeadDim,
                                  row + own_row() < tokens);
      }
    }

   private:
    static constexpr int kChunks = kHeadDim / 8;
    static constexpr int kRows = kPrefillThreads / kChunks;  // at once
    // Rows so far apart lie alike in the swizzle.
    static_assert(kBlockTokens % kRows == 0 && kRows % 8 == 0);

    static __device__ __forceinline__ int own_row() { return threadIdx.x / kChunks; }
    static __device__ __forceinline__ int own_chunk() { return threadIdx.x % kChunks; }

    // One multiplication of 32 bits.
    __device__ __forceinline__ const half* of_block(int32_t block) const {
      return data_ +
             static_cast<uint64_t>(static_cast<uint32_t>(block)) * block_bytes_ / sizeof(half);
    }

    const half* data_;
    uint32_t block_bytes_;
  };
};

}  // namespace rf

#endif
