// Decode attention without matrix instructions: what a wave does.
//
// Inside a wave the elements of a token are spread over kLanes lanes, in chunks of 16 bytes, and
// the wave holds several tokens. Heads too large for one chunk a lane take several: chunk c of a
// lane is number c * kLanes + lane of the row. The products of a step, kUnroll tokens times kGroup
// heads, are partial sums in every lane. Instead of a full butterfly for each, every exchange
// halves how many a lane holds, until lane c of a token's lanes has the finished scores c, c + 1,
// ...: one shuffle a score.
#pragma once

#include "rf/attention/packed_values.h"
#include "rf/decode/walk.h"

namespace rf {

constexpr int power_of_two_above(int count) {
  int power = 1;
  while (power < count) power *= 2;
  return power;
}

constexpr int least_of(int a, int b) { return a < b ? a : b; }

// How a wave divides the work for one kind of cache, head size and group.
template <class Stored, int kKeyDim, int kValueDim, int kGroup>
struct DecodeShape {
  static constexpr int lanes_of(int chunk) {
    return least_of(32, power_of_two_above((kValueDim + chunk - 1) / chunk));
  }
  static constexpr bool is_wide(int chunk) { return kKeyDim > chunk * lanes_of(chunk); }
  // Of an int8 cache 16 would be one load, but then a lane has twice as many elements of queries
  // and results, and fewer waves fit on a compute unit.
  static constexpr int kChunk = 8;
  static constexpr int kLanes = lanes_of(kChunk);
  static constexpr bool kWide = is_wide(kChunk);  // several chunks a lane
  static constexpr int kKeyChunks = (kKeyDim + kChunk * kLanes - 1) / (kChunk * kLanes);
  static constexpr int kValueChunks = (kValueDim + kChunk * kLanes - 1) / (kChunk * kLanes);
  static constexpr int kTokens = kWave / kLanes;                         // in one load
  static constexpr int kUnroll = kGroup <= 4 && !kWide ? 4 : 2;          // loads in one step
  static constexpr int kStep = kTokens * kUnroll;                        // tokens in a wave's step
  static constexpr int kScores = kUnroll * kGroup;                       // of a token's lanes
  static constexpr int kHeld = kScores > kLanes ? kScores / kLanes : 1;  // by each lane, at the end
  static constexpr int kCopies = kLanes > kScores ? kLanes / kScores : 1;  // lanes with one score
  static constexpr int kLanesPerHead = kLanes / kGroup;
  static_assert(kKeyDim % kChunk == 0 && kValueDim % kChunk == 0 && kGroup <= kLanes);
  static_assert(kHeld <= kUnroll, "the scores of a lane belong to one head");
  static_assert(kBlockTokens % kStep == 0, "a step never straddles two blocks of the cache");
};

// Where the chunks of a lane begin among the last kDim of kRowDim elements of a row.
template <class Shape, int kDim, int kRowDim = kDim>
struct LaneColumns {
  static constexpr int kRow = kRowDim;
  static constexpr int kFirst = kRowDim - kDim;
  static constexpr int kChunks =
      (kDim + Shape::kChunk * Shape::kLanes - 1) / (Shape::kChunk * Shape::kLanes);
  bool active[kChunks];
  int first[kChunks];

  __device__ __forceinline__ explicit LaneColumns(int lane) {
    for_each_chunk<kChunks>([&](int c) {
      const int column = (c * Shape::kLanes + lane) * Shape::kChunk;
      active[c] = column < kDim;
      first[c] = active[c] ? column : 0;
    });
  }
};

// Exchanges until lane c holds the sums c * kHeld ... of the kCount in every lane.
template <int kMask, int kCount>
__device__ __forceinline__ void scatter_sums(float* sums) {
  if constexpr (kMask >= 1) {
    if constexpr (kCount > 1) {
      const bool upper = (lane_id() & kMask) != 0;
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        const float kept = upper ? sums[i + kCount / 2] : sums[i];
        const float sent = upper ? sums[i] : sums[i + kCount / 2];
        sums[i] = kept + shfl_xor<kMask>(sent);
      }
      scatter_sums<kMask / 2, kCount / 2>(sums);
    } else {
      sums[0] += shfl_xor<kMask>(sums[0]);
      scatter_sums<kMask / 2, 1>(sums);
    }
  }
}

// What one lane of a wave knows of its kGroup heads. `highest` and `total` are of one head,
// lane % kLanes / kLanesPerHead; `output` is the lane's chunks of every head.
template <class Shape, int kGroup>
struct DecodeState {
  float highest = kLowestScore;
  float total = 0.0f;
  float output[kGroup][Shape::kValueChunks * Shape::kChunk] = {};

  // Multiplies each head's output by the factor that the lanes of that head hold.
  __device__ __forceinline__ void scale_output(float factor) {
    const int first = lane_id() & ~(Shape::kLanes - 1);
#pragma unroll
    for (int head = 0; head < kGroup; ++head) {
      const float own = shfl(factor, first + head * Shape::kLanesPerHead);
#pragma unroll
      for (float& value : output[head]) value *= own;
    }
  }

  // Moves to a new maximum of the scores.
  __device__ __forceinline__ void raise(float new_highest) {
    const float factor = exp2(highest - new_highest);
    highest = new_highest;
    total *= factor;
    scale_output(factor);
  }
};

// Sums up the tokens that different lanes have seen: afterwards all lanes agree.
template <class Shape, int kGroup, int kMask = Shape::kLanes>
__device__ __forceinline__ void merge_lanes(DecodeState<Shape, kGroup>& state) {
  if constexpr (kMask < kWave) {
    state.raise(max(state.highest, shfl_xor<kMask>(state.highest)));
    state.total += shfl_xor<kMask>(state.total);
#pragma unroll
    for (int head = 0; head < kGroup; ++head) {
#pragma unroll
      for (float& value : state.output[head]) value += shfl_xor<kMask>(value);
    }
    merge_lanes<Shape, kGroup, kMask * 2>(state);
  }
}

// kCount elements of a row as they are stored, and as numbers.
template <class Element, int kCount>
struct LaneChunk {
  using Type = Vec<Element, kCount>;
  using Numbers = Type;
  static __device__ __forceinline__ Type numbers(const Type& chunk) { return chunk; }
};
template <>
struct LaneChunk<uint32_t, kPacked<uint32_t>> {
  using Type = uint32_t;
  using Numbers = Vec<half, kPacked<uint32_t>>;
  static __device__ __forceinline__ Numbers numbers(uint32_t chunk) {
    return unpack_nibbles(chunk);
  }
};

template <class Stored, int kKeyDim, int kValueDim, int kGroup, bool kValuesInKeys>
class LaneWave {
  using Shape = DecodeShape<Stored, kKeyDim, kValueDim, kGroup>;
  static constexpr int kChunk = Shape::kChunk;
  static constexpr int kKeyChunks = Shape::kKeyChunks;
  static constexpr int kValueChunks = Shape::kValueChunks;
  static constexpr int kUnroll = Shape::kUnroll;
  static constexpr int kHeld = Shape::kHeld;
  static constexpr bool kQuantised = CacheType<Stored>::kHasScales;
  using KeyChunk = LaneChunk<typename CacheType<Stored>::Key, kChunk>;
  using ValueChunk = LaneChunk<typename CacheType<Stored>::Value, kChunk>;

 public:
  static constexpr bool kAsksAhead = false;
  static constexpr int kPad = 0;  // bytes between rows of keys and values in LDS
  struct First {};

  // Takes rows of kKeyDim; those of `heads` and beyond are not read.
  __device__ __forceinline__ void load_queries(const half* rows, int heads) {
#pragma unroll
    for (int head = 0; head < kGroup; ++head) {
      for_each_chunk<kKeyChunks>([&](int c) {
        const bool valid = key_columns_.active[c] && head < heads;
        const half* row = rows + (valid ? head : 0) * kKeyDim + key_columns_.first[c];
#pragma unroll
        for (int i = 0; i < kChunk; i += 8) {
          const Vec<half, 8> part = load16(row + i);
#pragma unroll
          for (int k = 0; k < 8; ++k) {
            query_[head][c * kChunk + i + k] = valid ? to_float(part[k]) : 0.0f;
          }
        }
      });
    }
  }

  // Reads the tokens of the wave, one of `waves` that take steps in turn.
  template <class Walk>
  __device__ __forceinline__ void attend(const Cache<Stored>& cache, const Walk& walk, int wave,
                                         int waves, const ScoreRule& rule) {
    // The score this lane ends up with: of token `my_token` (plus 0 ... kHeld - 1) of the step.
    const int my_score = chunk_ / Shape::kCopies * kHeld;
    const int my_unroll = my_score % kUnroll;
    // Rows for the kUnroll loads of the step at `base`.
    const auto row_of = [&](int base, int64_t block_row, int unroll) {
      return walk.row_of(base + unroll * Shape::kTokens + token_lane_, block_row);
    };
    const auto load = [&]<class Element, class Columns, class Chunk, int kCount>(
                          const Element* data, const Columns& columns, int base, int64_t block_row,
                          Chunk(&chunks)[kUnroll][kCount]) {
#pragma unroll
      for (int unroll = 0; unroll < kUnroll; ++unroll) {
        for_each_chunk<kCount>([&](int c) {
          const int64_t first =
              row_of(base, block_row, unroll) * Columns::kRow + Columns::kFirst + columns.first[c];
          const Element* address = data + first / kPacked<Element>;
          chunks[unroll][c] = __builtin_nontemporal_load(reinterpret_cast<const Chunk*>(address));
        });
      }
    };

    const int stride = waves * Shape::kStep;
    int base = walk.begin + wave * Shape::kStep;
    typename KeyChunk::Type keys[kUnroll][kKeyChunks];
    typename ValueChunk::Type values[kUnroll][kValueChunks];
    int64_t block_row = walk.first_row_of(walk.block_of(base));
    if (base < walk.end) load(cache.k, key_columns_, base, block_row, keys);
    int32_t next_block = walk.block_of(base + stride);
    for (; base < walk.end; base += stride) {
      load(cache.v, value_columns_, base, block_row, values);
      float k_scale[kHeld], v_scale[kHeld];
      if constexpr (kQuantised) {
#pragma unroll
        for (int held = 0; held < kHeld; ++held) {
          const int64_t row = row_of(base, block_row, my_unroll + held);
          k_scale[held] = cache.k_scale[row];
          v_scale[held] = cache.v_scale[row];
        }
      }

      // Scores are numbered head * kUnroll + unroll.
      float scores[Shape::kScores];
#pragma unroll
      for (int unroll = 0; unroll < kUnroll; ++unroll) {
#pragma unroll
        for (int head = 0; head < kGroup; ++head) {
          float sum = 0.0f;
#pragma unroll
          for (int i = 0; i < kKeyChunks * kChunk; ++i) {
            sum =
                fma(static_cast<float>(keys[unroll][i / kChunk][i % kChunk]), query_[head][i], sum);
          }
          scores[head * kUnroll + unroll] = sum;
        }
      }
      // The next step's keys travel while this one's scores are finished.
      const int next = base + stride;
      if (next < walk.end) {
        block_row = walk.first_row_of(next_block);
        next_block = walk.block_of(next + stride);
        load(cache.k, key_columns_, next, block_row, keys);
      }
      scatter_sums<Shape::kLanes / 2, Shape::kScores>(scores);

      float highest = state_.highest;
#pragma unroll
      for (int held = 0; held < kHeld; ++held) {
        const int token = base + (my_unroll + held) * Shape::kTokens + token_lane_;
        if constexpr (kQuantised) scores[held] *= k_scale[held];
        scores[held] = walk.sees(token) ? rule(scores[held]) : -kInfinity;
        highest = max(highest, scores[held]);
      }
      highest = wave_max<Shape::kLanesPerHead>(highest);
      if (ballot(highest > state_.highest) != 0) state_.raise(highest);

      float weights[kHeld];
#pragma unroll
      for (int held = 0; held < kHeld; ++held) {
        weights[held] = exp2(scores[held] - state_.highest);
        state_.total += weights[held];
        if constexpr (kQuantised) weights[held] *= v_scale[held];
      }
      const int first_lane = lane_id() - chunk_;
#pragma unroll
      for (int unroll = 0; unroll < kUnroll; ++unroll) {
        typename ValueChunk::Numbers own[kValueChunks];
        for_each_chunk<kValueChunks>(
            [&](int c) { own[c] = ValueChunk::numbers(values[unroll][c]); });
#pragma unroll
        for (int head = 0; head < kGroup; ++head) {
          const int score = head * kUnroll + unroll;
          const float weight =
              shfl(weights[score % kHeld], first_lane + score / kHeld * Shape::kCopies);
#pragma unroll
          for (int i = 0; i < kValueChunks * kChunk; ++i) {
            const auto value = static_cast<float>(own[i / kChunk][i % kChunk]);
            state_.output[head][i] = fma(weight, value, state_.output[head][i]);
          }
        }
      }
    }
  }

  // Puts together what the lanes have found, once all tokens are read.
  __device__ __forceinline__ void finish() {
    // A head's total lies in pieces in its lanes, each kCopies times.
    state_.total = wave_sum<Shape::kLanesPerHead>(state_.total) * (1.0f / Shape::kCopies);
    merge_lanes<Shape, kGroup>(state_);
  }

  // Writes what it found to LDS: sums of values, relative to their maximum.
  __device__ __forceinline__ void store(float (&output)[kGroup][kValueDim],
                                        float (&highest)[kGroup], float (&total)[kGroup]) const {
    if (token_lane_ != 0) return;
    if (chunk_ % Shape::kLanesPerHead == 0) {
      highest[chunk_ / Shape::kLanesPerHead] = state_.highest;
      total[chunk_ / Shape::kLanesPerHead] = state_.total;
    }
    for_each_chunk<kValueChunks>([&](int c) {
      if (!value_columns_.active[c]) return;
#pragma unroll
      for (int head = 0; head < kGroup; ++head) {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
          output[head][value_columns_.first[c] + i] = state_.output[head][c * kChunk + i];
        }
      }
    });
  }

 private:
  const int chunk_ = lane_id() % Shape::kLanes;
  const int token_lane_ = lane_id() / Shape::kLanes;
  // Chunks beyond the end of a row are the first of it again, and count for nothing.
  const LaneColumns<Shape, kKeyDim> key_columns_{chunk_};
  const LaneColumns<Shape, kValueDim, kValuesInKeys ? kKeyDim : kValueDim> value_columns_{chunk_};
  float query_[kGroup][kKeyChunks * kChunk];
  DecodeState<Shape, kGroup> state_;
};

}  // namespace rf
