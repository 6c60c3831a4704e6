// The new token of a sequence in decode attention, where nothing else hides how long loads take:
// all of them are on their way together.
#pragma once

#include "rf/decode/joint_norms.h"
#include "rf/decode/kernel.h"

namespace rf {

// The rows of the new token of a block's kv head. A wave rotates some of the queries; in the block
// that reads the token's own key, one does the same to that, and another stores the value.
template <HeadNorms kNorms, class Stored, int kKeyDim, int kValueDim, int kGroup>
class NewTokenRows {
  static constexpr bool kJoint = kNorms == HeadNorms::kJoint;
  static constexpr int kPairs = kPairsOfLane<(kKeyDim > kValueDim ? kKeyDim : kValueDim)>;
  static constexpr int kRounds = (kGroup + kDecodeWaves - 1) / kDecodeWaves;
  static constexpr int kWeights = kJoint ? kRounds : 1;  // of heads of queries that differ

 public:
  using Row = NewRow<Stored, kKeyDim, kValueDim>;

  // Finds out where the wave's rows are, and asks for what they are multiplied with.
  __device__ __forceinline__ void find(const NewTokens& fresh, int position, int token,
                                       int first_head, int heads, int kv_head, bool owns_key,
                                       int wave) {
    const float* queries = fresh.q + token * fresh.q_stride + first_head * kKeyDim;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      rows_[round] = queries + min(round * kDecodeWaves + wave, heads - 1) * kKeyDim;
    }
    rows_[kRounds] = queries;
    is_key_ = wave == kKeyWave;
    is_owner_ = owns_key && wave <= kValueWave;
    if (is_owner_) {
      rows_[kRounds] = is_key_ ? fresh.k + token * fresh.k_stride + kv_head * kKeyDim
                               : fresh.v + token * fresh.v_stride + kv_head * kValueDim;
    }
    const HeadShape key = key_shape(fresh);
    const int64_t row = static_cast<int64_t>(position) * (fresh.rotary_dim / 2);
    turns_ = load_turns<kPairs>(key, fresh.cosine + row, fresh.sine + row);
    for (int i = 0; i < kPairs; ++i) {
      for (auto& weights : q_weights_) weights.x[i] = weights.y[i] = 1.0f;
      own_weights_.x[i] = own_weights_.y[i] = 1.0f;
    }
    if (fresh.q_norm) {
      const float* weights = fresh.q_norm + (kJoint ? first_head * kKeyDim : 0);
#pragma unroll
      for (int i = 0; i < kWeights; ++i) {
        const int head = kJoint ? min(i * kDecodeWaves + wave, heads - 1) : 0;
        q_weights_[i] = load_head<kPairs>(key, weights + head * kKeyDim);
      }
    }
    if (is_key_ && fresh.k_norm) {
      own_weights_ = load_head<kPairs>(key, fresh.k_norm + (kJoint ? kv_head * kKeyDim : 0));
    }
  }

  // Asks for the rows.
  __device__ __forceinline__ void load(const NewTokens& fresh) {
    const HeadShape key = key_shape(fresh);
    const HeadShape shape = own_shape(fresh);
#pragma unroll
    for (int round = 0; round <= kRounds; ++round) {
      heads_[round] = load_head<kPairs>(round < kRounds ? key : shape, rows_[round]);
    }
  }

  // Waits until they are there.
  __device__ __forceinline__ void wait() const {
    if constexpr (kRounds == 2) {
      wait_for_previous(rows_[0], rows_[1], rows_[2]);
    } else {
      wait_for_previous(rows_[0], rows_[1]);
    }
  }

  // Puts rotated queries into LDS, and key and value too, from where they go to the cache.
  __device__ __forceinline__ void take(const NewTokens& fresh, const Cache<Stored>& cache,
                                       int heads, int64_t cache_row, int wave,
                                       const RowFactors& row_factors,
                                       half (&queries)[kGroup][kKeyDim], Row& row, float* scratch) {
    const HeadShape key = key_shape(fresh);
    const HeadShape shape = own_shape(fresh);
    HeadPairs<kPairs>& own = heads_[kRounds];
    const bool rotates_first = kNorms == HeadNorms::kOfHeads && fresh.rotates_first;
    if (rotates_first) rotate_all(key, shape);
    if (fresh.q_norm || fresh.k_norm || fresh.norms_values) {
      float factors[kRounds + 1];
#pragma unroll
      for (int round = 0; round <= kRounds; ++round) {
        float factor = norm_factor(round < kRounds ? key : shape, heads_[round], fresh.eps);
        if (kJoint && round < kRounds) factor = row_factors.query;
        if (kJoint && round == kRounds && is_key_) factor = row_factors.key;
        const bool own_is_normed = is_key_ ? fresh.k_norm != nullptr : fresh.norms_values;
        const bool is_normed = round < kRounds ? fresh.q_norm != nullptr : own_is_normed;
        factors[round] = is_normed ? factor : 1.0f;
      }
#pragma unroll
      for (int round = 0; round <= kRounds; ++round) {
        scale_head(heads_[round], factors[round],
                   round < kRounds ? q_weights_[kJoint ? round : 0] : own_weights_);
      }
    }
    if (!rotates_first) rotate_all(key, shape);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int head = round * kDecodeWaves + wave;
      if (head < heads) store_head(key, heads_[round], queries[head]);
    }
    if (!is_owner_) return;
    float* const scale = is_key_ ? &row.k_scale : &row.v_scale;
    if constexpr (CacheType<Stored>::kPacksValues) {
      if (is_key_) {
        store_cached(shape, own, row.key, scale);
      } else {
        store_packed(shape, own, row.value, scale, scratch);
      }
      wave_sync();
      if (is_key_) {
        copy<Row::kKeyWords>(row.key, cache.k + cache_row * kKeyDim);
      } else {
        copy<Row::kValueWords>(row.value,
                               cache.v + cache_row * kValueDim / kPacked<typename Row::Value>);
      }
    } else {
      Stored* const stored = is_key_ ? row.key : row.value;
      store_cached(shape, own, stored, scale);
      wave_sync();
      Stored* const to = is_key_ ? cache.k + cache_row * kKeyDim : cache.v + cache_row * kValueDim;
      if (kKeyDim == kValueDim || is_key_) {
        copy<Row::kKeyWords>(stored, to);
      } else {
        copy<Row::kValueWords>(stored, to);
      }
    }
    if (CacheType<Stored>::kHasScales && lane_id() == 0) {
      (is_key_ ? cache.k_scale : cache.v_scale)[cache_row] = *scale;
    }
  }

 private:
  static constexpr int kKeyWave = 0;
  static constexpr int kValueWave = 1;

  static __device__ __forceinline__ HeadShape key_shape(const NewTokens& fresh) {
    return {kKeyDim, fresh.rotary_dim, fresh.neox};
  }

  __device__ __forceinline__ HeadShape own_shape(const NewTokens& fresh) const {
    return {kKeyDim == kValueDim || is_key_ ? kKeyDim : kValueDim, is_key_ ? fresh.rotary_dim : 0,
            is_key_ && fresh.neox};
  }

  __device__ __forceinline__ void rotate_all(const HeadShape& key, const HeadShape& own) {
#pragma unroll
    for (int round = 0; round <= kRounds; ++round) {
      rotate(round < kRounds ? key : own, heads_[round], turns_);
    }
  }

  template <int kWords>
  static __device__ __forceinline__ void copy(const void* from, void* to) {
#pragma unroll
    for (int first = 0; first < kWords; first += kWave) {
      const int word = first + lane_id();
      if (word < kWords) {
        static_cast<uint32_t*>(to)[word] = static_cast<const uint32_t*>(from)[word];
      }
    }
  }

  // Queries, and the key or value; where there is none, a query in its place.
  const float* rows_[kRounds + 1] = {};
  bool is_key_ = false, is_owner_ = false;
  HeadTurns<kPairs> turns_;
  HeadPairs<kPairs> heads_[kRounds + 1];
  HeadPairs<kPairs> q_weights_[kWeights], own_weights_;
};

}  // namespace rf
