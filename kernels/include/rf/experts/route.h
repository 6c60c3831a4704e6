// Which experts a token goes to, and what they count.
#pragma once

#include "rf/experts/experts.h"
#include "rf/wave.h"

namespace rf {

// Unsigned numbers in the order of floats; one for each NaN, too, so that all are in an order.
__device__ __forceinline__ uint32_t in_order(float x) {
  const auto bits = __builtin_bit_cast(uint32_t, x + 0.0f);  // -0 is 0
  return bits >> 31 ? ~bits : bits | 1u << 31;
}

// The largest of the lanes' values.
__device__ __forceinline__ uint32_t wave_highest(uint32_t value) {
#if RF_NVIDIA
  return __nvvm_redux_sync_umax(value, kAllLanes);
#else
  return wave_reduce(value, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
#endif
}

// How many of `count` keys come before key `index`: larger ones, and the equal ones before it. Keys
// are aligned to 16 bytes, those beyond, up to a multiple of four, are 0.
__device__ __forceinline__ int rank_of(const uint32_t* keys, int index, int count) {
  const uint32_t own = keys[index];
  int rank = 0;
#pragma unroll 4
  for (int first = 0; first < count; first += 4) {
    const Vec<uint32_t, 4> four = load16(keys + first);
    for (int k = 0; k < 4; ++k) {
      rank += four[k] > own || (four[k] == own && first + k < index) ? 1 : 0;
    }
  }
  return rank;
}

// How a router's logits choose.
struct RouteRule {
  const float* bias;            // [experts] or null, added to the logits
  const float* selection_bias;  // [experts] or null, added to what `function` makes of them, to
                                // choose by and not to weight
  const float* weight_scale;    // [experts] or null, multiplies the weight of each
  int experts;
  int num_chosen;
  int function;       // kRouteSoftmax, ...
  int groups;         // of experts, of which
  int kept_groups;    // so many may be chosen from: whose two best are the largest sum
  bool normalised;    // the weights are divided by their sum, or 2^-14 if that is less
  float scale;        // of the weights
  int first_own;      // of the experts that this device has
  int num_own;        // so many follow each other
  int num_shared;     // 1: each token goes to an expert besides, the first of this device's
  int weighs_shared;  // 1: its weight, or that of a network beside the experts, is the sigmoid of
                      // the logit behind the others; else 1

  // Logits and experts of a token.
  __device__ __forceinline__ int num_logits() const { return experts + weighs_shared; }
  __device__ __forceinline__ int num_pairs() const { return num_chosen + num_shared; }
};

// Where the experts of tokens go, and what they count.
struct Choices {
  int32_t* chosen;  // [tokens, num_pairs]
  float* weights;   // alike
  float* shares;    // [tokens]: what a network beside the experts counts; null: there is none, or 1

  __device__ __forceinline__ Choices of(const RouteRule& rule, int64_t token) const {
    const int64_t first = token * rule.num_pairs();
    return {chosen + first, weights + first, shares ? shares + token : nullptr};
  }
};

// The logits of a token in parts that are added up.
struct SplitLogits {
  const float* first;      // [experts + weighs_shared]
  int splits = 1;          // so many,
  int64_t split_size = 0;  // as far from each other

  __device__ __forceinline__ float operator()(int expert) const {
    float logit = first[expert];
#pragma unroll 1
    for (int i = 1; i < splits; ++i) logit += first[i * split_size + expert];
    return logit;
  }
};

// The experts of one token, chosen by a block of at least as many threads as there are experts.
// Logits are functions: logits(expert), and that of a shared expert behind those of the others.
class RouteChoice {
 public:
  struct Lds {
    float scratch[kMaxWaves];
    alignas(16) uint32_t keys[kMostExperts];
    alignas(16) uint32_t group_keys[kMostExperts];
    union {
      float scores[kMostExperts];  // until groups are chosen
      float values[kMostExperts];  // what the function makes of logits
    };
    int chosen[kMostExperts];
    float picked[kMostExperts];
  };

  __device__ __forceinline__ RouteChoice(Lds& lds, const RouteRule& rule)
      : lds_(lds), rule_(rule) {}

  // Does it all for one token: its logits, and where its choice goes.
  template <class Logits>
  __device__ __forceinline__ void run(const Logits& logits, const Choices& to) {
    offer<true>(own_logit(logits));
    if (wave_id() == 0) {
      best(rule_.num_chosen, [&](int rank, int expert) {
        lds_.chosen[rank] = expert;
        lds_.picked[rank] = lds_.values[expert];
      });
    }
    __syncthreads();
    store(to, logits);
  }

  // Returns the expert of one rank, counted from the first of this device, or kElsewhere; that of
  // the rank behind the others is the shared one. Each wave finds it for itself; all threads of the
  // block call this.
  template <class Logits>
  __device__ __forceinline__ int only(const Logits& logits, int rank) {
    if (rank >= rule_.num_chosen) return 0;
    offer<false>(own_logit(logits));
    return own(best(rank + 1, [](int, int) {}));
  }

 private:
  // An expert as this device counts them.
  __device__ __forceinline__ int own(int expert) const {
    const int own = expert - rule_.first_own;
    return own >= 0 && own < rule_.num_own ? own : kElsewhere;
  }

  // The logit of a thread's expert, if it has one.
  template <class Logits>
  __device__ __forceinline__ float own_logit(const Logits& logits) const {
    const int expert = threadIdx.x;
    if (expert >= rule_.experts) return -kInfinity;
    return logits(expert) + (rule_.bias ? rule_.bias[expert] : 0.0f);
  }

  // Writes the experts of the token and their weights; `logits` are for that of what is shared.
  template <class Logits>
  __device__ __forceinline__ void store(const Choices& to, const Logits& logits) const {
    const int rank = threadIdx.x;
    if (rank < rule_.num_chosen) {
      to.chosen[rank] = own(lds_.chosen[rank]);
      to.weights[rank] = weight(rank);
    }
    if (rank != 0 || (rule_.num_shared == 0 && !to.shares)) return;
    const float share = rule_.weighs_shared ? 1.0f / (1.0f + exp(-logits(rule_.experts))) : 1.0f;
    if (rule_.num_shared == 0) {
      *to.shares = share;
    } else {
      to.chosen[rule_.num_chosen] = 0;
      to.weights[rule_.num_chosen] = share;
    }
  }

  __device__ __forceinline__ float weight(int rank) const {
    const float* picked = lds_.picked;
    const int num_chosen = rule_.num_chosen;
    float weight = picked[rank];
    if (rule_.function == kRouteSoftmaxOfChosen) {
      float largest = picked[0];
#pragma unroll 1
      for (int i = 1; i < num_chosen; ++i) largest = max(largest, picked[i]);
      float total = 0.0f;
#pragma unroll 1
      for (int i = 0; i < num_chosen; ++i) total += exp(picked[i] - largest);
      weight = exp(weight - largest) / total;
    } else if (rule_.normalised) {
      constexpr float kLeast = 1.0f / (1 << 14);
      float total = 0.0f;
#pragma unroll 1
      for (int i = 0; i < num_chosen; ++i) total += picked[i];
      weight /= max(total, kLeast);
    }
    if (rule_.weight_scale) weight *= rule_.weight_scale[lds_.chosen[rank]];
    return weight * rule_.scale;
  }

  __device__ __forceinline__ bool chooses_by_values() const {
    return rule_.selection_bias || rule_.groups > 1;
  }

  // Has experts be chosen by what the rule makes of their logits. All threads of the block call
  // this. Without kWeighs, where the larger logit is the larger score, too, nobody waits for what
  // the function makes of them, which weights are made of.
  template <bool kWeighs>
  __device__ __forceinline__ void offer(float logit) {
    const int expert = threadIdx.x;
    const bool inside = expert < rule_.experts;
    const float value = kWeighs || chooses_by_values() ? applied(logit, totals_of(logit)) : logit;
    float score = inside && rule_.selection_bias ? value + rule_.selection_bias[expert] : value;
    if (rule_.groups > 1) score = in_kept_groups(score, expert, inside);
    if (inside) {
      const uint32_t key = in_order(score);
      lds_.keys[expert] = key > 0 ? key : 1;
      if constexpr (kWeighs) lds_.values[expert] = value;
    }
    __syncthreads();
  }

  // Calls taken(rank, expert) for the `count` best experts that are offered, the best first, of
  // equal ones the first, in one lane each, and returns the last of them. Each wave does so for
  // itself, without waiting for another.
  template <class Taken>
  __device__ __forceinline__ int best(int count, const Taken& taken) const {
    constexpr int kFew = 128 / kWave;
    return rule_.experts <= kFew * kWave ? best_of<kFew>(count, taken)
                                         : best_of<kMostExperts / kWave>(count, taken);
  }

  // kOfLane: experts of a lane, at least.
  template <int kOfLane, class Taken>
  __device__ __forceinline__ int best_of(int count, const Taken& taken) const {
    const int first = lane_id() * kOfLane;
    uint32_t keys[kOfLane];
#pragma unroll
    for (int i = 0; i < kOfLane; ++i)
      keys[i] = first + i < rule_.experts ? lds_.keys[first + i] : 0;
    int expert = 0;
#pragma unroll 1
    for (int rank = 0; rank < count; ++rank) {
      uint32_t own = keys[0];
#pragma unroll
      for (int i = 1; i < kOfLane; ++i) own = own > keys[i] ? own : keys[i];
      const uint32_t highest = wave_highest(own);
      const int lane = __builtin_ctzll(ballot(own == highest));
      bool is_left = lane_id() == lane;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        const bool is_it = is_left && keys[i] == highest;
        keys[i] = is_it ? 0 : keys[i];
        expert = is_it ? first + i : expert;
        is_left = is_left && !is_it;
      }
      if (lane_id() == lane) taken(rank, expert);
      if (rank == count - 1) expert = shfl(expert, lane);
    }
    return expert;
  }

  // What the softmax of the logits subtracts, and divides by.
  struct Totals {
    float largest, sum;
  };
  // All threads of the block call this.
  __device__ __forceinline__ Totals totals_of(float logit) const {
    if (rule_.function != kRouteSoftmax) return {};
    const auto larger = [](float a, float b) { return max(a, b); };
    const float largest = block_reduce(logit, lds_.scratch, larger);
    const bool inside = static_cast<int>(threadIdx.x) < rule_.experts;
    return {largest, block_sum(inside ? exp(logit - largest) : 0.0f, lds_.scratch)};
  }

  // What the rule's function makes of a logit.
  __device__ __forceinline__ float applied(float logit, Totals totals) const {
    if (rule_.function == kRouteSoftmax) return exp(logit - totals.largest) / totals.sum;
    if (rule_.function == kRouteSigmoid) return 1.0f / (1.0f + exp(-logit));
    return logit;
  }

  // The score, or less than any if the expert's group is not kept.
  __device__ __forceinline__ float in_kept_groups(float score, int expert, bool inside) const {
    const int groups = rule_.groups;
    const int members = rule_.experts / groups;
    if (inside) lds_.scores[expert] = score;
    __syncthreads();
    lds_.group_keys[expert] = 0;
    if (expert < groups) {
      float best = -kInfinity;
      float second = -kInfinity;
#pragma unroll 1
      for (int i = expert * members; i < (expert + 1) * members; ++i) {
        second = max(second, min(best, lds_.scores[i]));
        best = max(best, lds_.scores[i]);
      }
      lds_.group_keys[expert] = in_order(members == 1 ? best : best + second);
    }
    __syncthreads();
    const bool kept =
        !inside || rank_of(lds_.group_keys, expert / members, groups) < rule_.kept_groups;
    return kept ? score : -kInfinity;
  }

  Lds& lds_;
  const RouteRule& rule_;
};

}  // namespace rf
