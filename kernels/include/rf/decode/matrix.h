// Decode attention on matrix instructions: what a wave does.
//
// Both products are computed transposed, as in mma_attention.h, with heads as columns:
//
//   scores^T [tokens x heads] = K [tokens x dims]   * Q^T [dims x heads]
//   output^T [dims x heads]   = V^T [dims x tokens] * P^T [tokens x heads]
//
// K and V go from the cache to registers, without LDS: which dims stand at which k of the first
// product, and at which row of the second, is free, so each lane takes 16 bytes side by side.
// Elements become halves by a few instructions for two of them, and no instruction is needed for
// each head: what limits an int8 cache without this.
//
// Weights of the softmax are two halves, one of the leading bits and one of the rest, in columns of
// their own, so that the result is as exact as with float32.
#pragma once

#include "rf/decode/unit.h"
#include "rf/decode/walk.h"
#include "rf/fetch_line.h"

namespace rf {

#if RF_DECODE_UNIT

namespace decode {

// The bytes plus 128 that the selectors name, as the last bits of halves from 1024 on, less what
// was added.
__device__ __forceinline__ HalfPair signed_pair(uint32_t biased, uint32_t selectors) {
  const HalfPair added{to_half(1024.0f + 128.0f), to_half(1024.0f + 128.0f)};
  return __builtin_bit_cast(HalfPair, byte_select(biased, 0x64646464u, selectors)) - added;
}

inline constexpr uint32_t kSigns = 0x80808080u;
inline constexpr uint32_t kLowBytes = 0x04010400u;  // of a word, as halves
inline constexpr uint32_t kHighBytes = 0x04030402u;

// Elements 4 * quad ... + 3 of a chunk, as two pairs.
template <int kCount>
__device__ __forceinline__ void load_quad(const Vec<half, kCount>& chunk, int quad,
                                          HalfPair (&pairs)[2]) {
  pairs[0] = HalfPair{chunk[4 * quad], chunk[4 * quad + 1]};
  pairs[1] = HalfPair{chunk[4 * quad + 2], chunk[4 * quad + 3]};
}
template <int kCount>
__device__ __forceinline__ void load_quad(const Vec<int8_t, kCount>& chunk, int quad,
                                          HalfPair (&pairs)[2]) {
  const uint32_t biased = __builtin_bit_cast(Vec<uint32_t, kCount / 4>, chunk)[quad] ^ kSigns;
  pairs[0] = signed_pair(biased, kLowBytes);
  pairs[1] = signed_pair(biased, kHighBytes);
}

// Element i of a in the lower half of pair i, that of b in the upper.
template <int kCount>
__device__ __forceinline__ void interleave(const Vec<half, kCount>& a, const Vec<half, kCount>& b,
                                           HalfPair (&pairs)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) pairs[i] = HalfPair{a[i], b[i]};
}
template <int kCount>
__device__ __forceinline__ void interleave(const Vec<int8_t, kCount>& a,
                                           const Vec<int8_t, kCount>& b,
                                           HalfPair (&pairs)[kCount]) {
  const auto left = __builtin_bit_cast(Vec<uint32_t, kCount / 4>, a);
  const auto right = __builtin_bit_cast(Vec<uint32_t, kCount / 4>, b);
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    const uint32_t x = left[i] ^ kSigns;
    const uint32_t y = right[i] ^ kSigns;
    const uint32_t low = byte_select(x, y, 0x05010400u);
    const uint32_t high = byte_select(x, y, 0x07030602u);
    pairs[4 * i] = signed_pair(low, kLowBytes);
    pairs[4 * i + 1] = signed_pair(low, kHighBytes);
    pairs[4 * i + 2] = signed_pair(high, kLowBytes);
    pairs[4 * i + 3] = signed_pair(high, kHighBytes);
  }
}

// Takes a chunk from elsewhere, word by word: of halves, the compiler would make loads of 2 bytes.
template <class Chunk>
__device__ __forceinline__ void replace(Chunk& chunk, bool replaces, const void* from) {
  using Words = Vec<uint32_t, sizeof(Chunk) / 4>;
  Words own = __builtin_bit_cast(Words, chunk);
  const Words other = *static_cast<const Words*>(from);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Chunk) / 4); ++i)
    own[i] = replaces ? other[i] : own[i];
  chunk = __builtin_bit_cast(Chunk, own);
}

}  // namespace decode

template <class Stored, int kKeyDim, int kValueDim, int kGroup>
class MatrixWave {
  using Unit = decode::Unit;
  static constexpr bool kQuantised = CacheType<Stored>::kHasScales;
  static constexpr int kStep = decode::kTileTokens;
  static constexpr int kKeyChunk = 16 / sizeof(Stored);         // elements
  static constexpr int kKeyChunks = kKeyDim / (4 * kKeyChunk);  // of a lane, in each row
  static constexpr int kQuads = kKeyChunk / 4;                  // of a chunk
  static constexpr int kLaneDims = kValueDim / Unit::kRowLanes;
  static constexpr int kValueChunk = kLaneDims < kKeyChunk ? kLaneDims : kKeyChunk;
  static constexpr int kValueChunks = kLaneDims / kValueChunk;
  static constexpr int kValueTiles = kLaneDims / Unit::kRows;
  // Leading bits and rests of the weights are columns of one tile, or each have tiles of their own.
  static constexpr bool kJoined = Unit::kColumns >= 2 * kGroup;
  static constexpr int kParts = kJoined ? 1 : 2;
  static constexpr float kRestFactor = 2048.0f;
  static constexpr float kLeastScale = 1e-30f;  // which has a logarithm

  using KeyChunk = Vec<Stored, kKeyChunk>;
  using ValueChunk = Vec<Stored, kValueChunk>;

  struct Keys {
    KeyChunk chunk[Unit::kRows][kKeyChunks];
    float k_scale[Unit::kScoreRows], v_scale[Unit::kScoreRows];

    template <class Walk>
    __device__ __forceinline__ void load(const Cache<Stored>& cache, const Walk& walk, int base,
                                         int64_t block_row) {
      constexpr int kPitch = kKeyDim + Walk::kPad / sizeof(Stored);
#pragma unroll
      for (int slot = 0; slot < Unit::kRows; ++slot) {
        const int64_t row = walk.row_of(base + Unit::row(slot), block_row);
#pragma unroll
        for (int c = 0; c < kKeyChunks; ++c) {
          const Stored* from = cache.k + row * kPitch + (4 * c + Unit::part()) * kKeyChunk;
          chunk[slot][c] = __builtin_nontemporal_load(reinterpret_cast<const KeyChunk*>(from));
        }
      }
      if constexpr (kQuantised) {
#pragma unroll
        for (int i = 0; i < Unit::kScoreRows; ++i) {
          const int64_t row = walk.row_of(base + Unit::token_of_row(i), block_row);
          k_scale[i] = cache.k_scale[row];
          v_scale[i] = cache.v_scale[row];
        }
      }
    }
  };

  template <class Walk>
  static __device__ __forceinline__ void load_values(const Cache<Stored>& cache, const Walk& walk,
                                                     int base, int64_t block_row,
                                                     ValueChunk (&values)[4][kValueChunks]) {
    constexpr int kPitch = kValueDim + Walk::kPad / sizeof(Stored);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int64_t row = walk.row_of(base + Unit::token_at(k), block_row);
#pragma unroll
      for (int c = 0; c < kValueChunks; ++c) {
        const int lane_chunk = c * Unit::kRowLanes + Unit::row_lane();
        const Stored* from = cache.v + row * kPitch + lane_chunk * kValueChunk;
        values[k][c] = __builtin_nontemporal_load(reinterpret_cast<const ValueChunk*>(from));
      }
    }
  }

 public:
  static constexpr bool kAsksAhead = true;  // see ask()
  static constexpr int kPad = 16;  // bytes between rows in LDS, which lanes read next to each other

  __device__ __forceinline__ MatrixWave() {
    for (float& value : highest_) value = kLowestScore;
  }

  // Takes rows of kKeyDim; those of `heads` and beyond are not read.
  __device__ __forceinline__ void load_queries(const half* rows, int heads) {
    const int head = Unit::row_lane() % kGroup;
    const bool valid = head < heads;
#pragma unroll
    for (int c = 0; c < kKeyChunks; ++c) {
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        const int dim = (4 * c + Unit::part()) * kKeyChunk + 4 * quad;
        const half* from = rows + (valid ? head : 0) * kKeyDim + dim;
        decode::load_quad(*reinterpret_cast<const Vec<half, 4>*>(from), 0, query_[c][quad]);
        for (HalfPair& pair : query_[c][quad]) pair = valid ? pair : HalfPair{};
      }
    }
  }

  // What the first step of a wave reads.
  struct First {
    Keys keys;
    ValueChunk values[4][kValueChunks];
    int32_t next_block;  // of the cache, where the second step reads
  };

  // Asks for the first step of the wave, one of `waves` that take steps in turn, but for the tokens
  // from `known` on.
  template <class Walk>
  static __device__ __forceinline__ void ask(const Cache<Stored>& cache, const Walk& walk,
                                             int known, int wave, int waves, First& first) {
    const int base = walk.begin + wave * kStep;
    const int64_t block_row = walk.first_row_of(walk.block_of(base));
    first.next_block = walk.block_of(base + waves * kStep);
    const Walk old = walk.until(known);
    if (base < old.end) {
      first.keys.load(cache, old, base, block_row);
      load_values(cache, old, base, block_row, first.values);
    }
  }

  // Has what the wave reads after that come nearer.
  template <class Walk>
  static __device__ __forceinline__ void fetch_rest(const Cache<Stored>& cache, const Walk& walk,
                                                    int known, int wave, int waves) {
    constexpr int kKeyLines = kStep * kKeyDim * static_cast<int>(sizeof(Stored)) / kLineBytes;
    constexpr int kValueLines = kStep * kValueDim * static_cast<int>(sizeof(Stored)) / kLineBytes;
    const int line = lane_id();
    for (int base = walk.begin + (wave + waves) * kStep; base < min(walk.end, known);
         base += waves * kStep) {
      const int64_t row = walk.row_of(base, walk.first_row_of(walk.block_of(base)));
      const auto* keys = reinterpret_cast<const char*>(cache.k + row * kKeyDim);
      const auto* values = reinterpret_cast<const char*>(cache.v + row * kValueDim);
      if (line < kKeyLines) fetch_line(keys + line * kLineBytes);
      if (line < kValueLines) fetch_line(values + line * kLineBytes);
    }
  }

  // Puts the last token of the context into the wave's first step, and where there are tokens
  // behind it.
  __device__ __forceinline__ void add_last(First& first, const TokenWalk& walk, int wave,
                                           const NewRow<Stored, kKeyDim, kValueDim>& row) const {
    const int base = walk.begin + wave * kStep;
    const int last = walk.context - 1;
    if (base + kStep <= last || base > last) return;
#pragma unroll
    for (int slot = 0; slot < Unit::kRows; ++slot) {
#pragma unroll
      for (int c = 0; c < kKeyChunks; ++c) {
        decode::replace(first.keys.chunk[slot][c], base + Unit::row(slot) >= last,
                        row.key + (4 * c + Unit::part()) * kKeyChunk);
      }
    }
    if constexpr (kQuantised) {
#pragma unroll
      for (int i = 0; i < Unit::kScoreRows; ++i) {
        const bool is_new = base + Unit::token_of_row(i) >= last;
        first.keys.k_scale[i] = is_new ? row.k_scale : first.keys.k_scale[i];
        first.keys.v_scale[i] = is_new ? row.v_scale : first.keys.v_scale[i];
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int c = 0; c < kValueChunks; ++c) {
        const int lane_chunk = c * Unit::kRowLanes + Unit::row_lane();
        decode::replace(first.values[k][c], base + Unit::token_at(k) >= last,
                        row.value + lane_chunk * kValueChunk);
      }
    }
  }

  // Reads the tokens of the wave, one of `waves` that take steps in turn.
  template <class Walk>
  __device__ __forceinline__ void attend(const Cache<Stored>& cache, const Walk& walk, int wave,
                                         int waves, const ScoreRule& rule) {
    First first;
    const int base = walk.begin + wave * kStep;
    const int64_t block_row = walk.first_row_of(walk.block_of(base));
    if (base < walk.end) first.keys.load(cache, walk, base, block_row);
    first.next_block = walk.block_of(base + waves * kStep);
    attend<false>(cache, walk, wave, waves, rule, first, block_row);
  }

  // The same with what `ask` asked for; with kHasValues false it lacks the values of the first
  // step, whose block is at block_row.
  template <bool kHasValues = true, class Walk>
  __device__ __forceinline__ void attend(const Cache<Stored>& cache, const Walk& walk, int wave,
                                         int waves, const ScoreRule& rule, First& first,
                                         int64_t block_row = 0) {
    const int stride = waves * kStep;
    const int begin = walk.begin + wave * kStep;
    Keys& keys = first.keys;
    auto& values = first.values;
    int32_t next_block = first.next_block;
    for (int base = begin; base < walk.end; base += stride) {
      if (!kHasValues || base > begin) load_values(cache, walk, base, block_row, values);
      float scores[4];
      multiply_keys(keys, scores);
      float k_scale[Unit::kScoreRows], v_scale[Unit::kScoreRows];
      if constexpr (kQuantised) {
        for (int i = 0; i < Unit::kScoreRows; ++i) {
          k_scale[i] = keys.k_scale[i];
          v_scale[i] = max(keys.v_scale[i], kLeastScale);
        }
      }
      // The next step's keys travel while this one's scores are finished.
      const int next = base + stride;
      if (next < walk.end) {
        block_row = walk.first_row_of(next_block);
        next_block = walk.block_of(next + stride);
        keys.load(cache, walk, next, block_row);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = Unit::score_row(i);
        if constexpr (kQuantised) scores[i] *= k_scale[row];
        scores[i] = rule(scores[i]);
        // The weights are then those of values as they are stored. They are at most 1, so that
        // halves serve, whatever the scales are.
        if constexpr (kQuantised) scores[i] += log2(v_scale[row]);
        if (!walk.sees(base + Unit::token_of_row(row))) scores[i] = -kInfinity;
      }
      raise_to(scores, !kHasValues || base > begin);
      float weights[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = Unit::lane_column(i);
        weights[i] = exp2(scores[i] - highest_[column]);
        total_[column] += kQuantised ? weights[i] * rcp(v_scale[Unit::score_row(i)]) : weights[i];
      }
      add_values(values, weights);
    }
  }

  // Puts together what the lanes have found, once all tokens are read.
  __device__ __forceinline__ void finish() {
    for (float& total : total_) {
      total = Unit::over_column(total, [](float a, float b) { return a + b; });
    }
  }

  // Writes what it found to LDS: sums of values, relative to their maximum.
  __device__ __forceinline__ void store(float (&output)[kGroup][kValueDim],
                                        float (&highest)[kGroup], float (&total)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < Unit::kLaneColumns; ++i) {
      const int column = Unit::column(i);
      if (column < kGroup && Unit::token_of_row(0) == 0) {
        highest[column] = highest_[i];
        total[column] = total_[i];
      }
    }
#pragma unroll
    for (int tile = 0; tile < kValueTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float rest = output_[kParts - 1][tile][i];
        if constexpr (kJoined) rest = shfl_xor<Unit::lanes_of_columns(kGroup)>(rest);
        const int own = tile * Unit::kRows + Unit::slot(i);  // among the dims of a lane
        const int lane_chunk = own / kValueChunk * Unit::kRowLanes + Unit::row_lane_of(i);
        const int dim = lane_chunk * kValueChunk + own % kValueChunk;
        const int column = Unit::column(Unit::lane_column(i));
        if (column < kGroup) {
          output[column][dim] = fma(rest, 1.0f / kRestFactor, output_[0][tile][i]);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ void multiply_keys(const Keys& keys, float (&scores)[4]) const {
    float chains[Unit::kChains][4] = {};
#pragma unroll
    for (int c = 0; c < kKeyChunks; ++c) {
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        HalfPair rows[Unit::kRows][2];
#pragma unroll
        for (int slot = 0; slot < Unit::kRows; ++slot) {
          decode::load_quad(keys.chunk[slot][c], quad, rows[slot]);
        }
        Unit::multiply(chains[quad % Unit::kChains], rows, query_[c][quad]);
      }
    }
    for (int i = 0; i < 4; ++i) {
      scores[i] = chains[0][i];
      for (int chain = 1; chain < Unit::kChains; ++chain) scores[i] += chains[chain][i];
    }
  }

  // Moves to the maximum of the scores, if it is higher. `has_output`: there is something to scale.
  __device__ __forceinline__ void raise_to(const float (&scores)[4], bool has_output) {
    float higher[Unit::kLaneColumns];
    bool rises = false;
#pragma unroll
    for (int i = 0; i < Unit::kLaneColumns; ++i) higher[i] = highest_[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      higher[Unit::lane_column(i)] = max(higher[Unit::lane_column(i)], scores[i]);
    }
#pragma unroll
    for (int i = 0; i < Unit::kLaneColumns; ++i) rises = rises || higher[i] > highest_[i];
    if (ballot(rises) == 0) return;
    float factor[Unit::kLaneColumns];
#pragma unroll
    for (int i = 0; i < Unit::kLaneColumns; ++i) {
      higher[i] = Unit::over_column(higher[i], [](float a, float b) { return max(a, b); });
      factor[i] = exp2(highest_[i] - higher[i]);
      highest_[i] = higher[i];
      total_[i] *= factor[i];
    }
    if (!has_output) return;
#pragma unroll
    for (auto& part : output_) {
#pragma unroll
      for (auto& tile : part) {
#pragma unroll
        for (int i = 0; i < 4; ++i) tile[i] *= factor[Unit::lane_column(i)];
      }
    }
  }

  __device__ __forceinline__ void add_values(const ValueChunk (&values)[4][kValueChunks],
                                             const float (&weights)[4]) {
    float leading[4], rest[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      leading[i] = weights[i] < kLeastHalf ? 0.0f : to_float(to_half(weights[i]));
      rest[i] = (weights[i] - leading[i]) * kRestFactor;
      if constexpr (kJoined) {
        const bool is_rest = Unit::column(Unit::lane_column(i)) / kGroup % 2 != 0;
        leading[i] = is_rest ? rest[i] : leading[i];
      }
    }
    HalfPair packed[kParts][2];
    Unit::pack(leading, packed[0]);
    if constexpr (!kJoined) Unit::pack(rest, packed[1]);
#pragma unroll
    for (int c = 0; c < kValueChunks; ++c) {
      HalfPair low[kValueChunk], high[kValueChunk];
      decode::interleave(values[0][c], values[1][c], low);
      decode::interleave(values[2][c], values[3][c], high);
#pragma unroll
      for (int i = 0; i < kValueChunk; i += Unit::kRows) {
        HalfPair rows[Unit::kRows][2];
#pragma unroll
        for (int slot = 0; slot < Unit::kRows; ++slot) {
          rows[slot][0] = low[i + slot];
          rows[slot][1] = high[i + slot];
        }
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          Unit::multiply(output_[part][(c * kValueChunk + i) / Unit::kRows], rows, packed[part]);
        }
      }
    }
  }

  HalfPair query_[kKeyChunks][kQuads][2];
  float highest_[Unit::kLaneColumns], total_[Unit::kLaneColumns] = {};
  float output_[kParts][kValueTiles][4] = {};
};

#endif

}  // namespace rf
