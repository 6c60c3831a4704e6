// The experts of each token and their weights.
#include "rf/experts.h"
#include "rf/wave.h"

namespace rf {

inline constexpr int kRouteThreads = 256;

// logits[t][e] = x[t] @ router[e] for a tile of tokens and one of experts. Lanes divide K the same
// way whatever the tile, so a token's logits do not depend on how many are computed together.
template <int kTokens, int kExperts>
__device__ __forceinline__ void route_logits(const float* x, const float* router, float* logits,
                                             int tokens, int experts, int features) {
  __shared__ float parts[kRouteThreads / kWave][kTokens][kExperts];
  const int first_token = blockIdx.y * kTokens;
  const int first_expert = blockIdx.x * kExperts;
  float sums[kTokens][kExperts] = {};
#pragma unroll 2
  for (int i = threadIdx.x * 4; i < features; i += kRouteThreads * 4) {
    Vec<float, 4> of_router[kExperts];
#pragma unroll
    for (int e = 0; e < kExperts; ++e) {
      const int64_t expert = min(first_expert + e, experts - 1);
      of_router[e] = load16(router + expert * features + i);
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int64_t token = min(first_token + t, tokens - 1);
      const Vec<float, 4> values = load16(x + token * features + i);
#pragma unroll
      for (int e = 0; e < kExperts; ++e) {
        for (int k = 0; k < 4; ++k) sums[t][e] = fma(values[k], of_router[e][k], sums[t][e]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
#pragma unroll
    for (int e = 0; e < kExperts; ++e) {
      const float sum = wave_sum(sums[t][e]);
      if (lane_id() == 0) parts[wave_id()][t][e] = sum;
    }
  }
  __syncthreads();
  const int i = threadIdx.x;
  const int t = i / kExperts;
  const int e = i % kExperts;
  if (t >= kTokens || first_token + t >= tokens || first_expert + e >= experts) return;
  float sum = 0.0f;
  for (int wave = 0; wave < kRouteThreads / kWave; ++wave) sum += parts[wave][t][e];
  logits[static_cast<int64_t>(first_token + t) * experts + first_expert + e] = sum;
}

// Unsigned numbers in the order of floats; one for each NaN, too, so that all are in an order.
__device__ __forceinline__ uint32_t in_order(float x) {
  const auto bits = __builtin_bit_cast(uint32_t, x + 0.0f);  // -0 is 0
  return bits >> 31 ? ~bits : bits | 1u << 31;
}

// How many of `count` keys come before key `index`: larger ones, and the equal ones before it.
// Those beyond, up to a multiple of four, are 0.
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

}  // namespace rf

// x: f32 [tokens, features], router: f32 [experts, features], features a multiple of 4. logits: f32
// [tokens, experts]. Grid: (ceil(experts / 1), tokens) for one, (ceil(experts / 4),
// ceil(tokens / 4)) for several; block 256.
#define RF_LOGITS(name, kTokens, kExperts)                                                      \
  extern "C" __global__ __launch_bounds__(rf::kRouteThreads) void rf_route_logits_##name(       \
      const float* __restrict__ x, const float* __restrict__ router, float* logits, int tokens, \
      int experts, int features) {                                                              \
    rf::route_logits<kTokens, kExperts>(x, router, logits, tokens, experts, features);          \
  }
RF_LOGITS(one, 1, 1)
RF_LOGITS(several, 4, 4)

// logits: f32 [tokens, experts]. bias, selection_bias: f32 [experts] or null; the first is added to
// the logits, the second to what `function` (experts.h) makes of them, to choose by and not to
// weight. Of `groups` of experts, those of the best kept_groups may be chosen: whose two best are
// the largest sum. chosen: int32 [tokens, num_chosen], the best first, of equal ones the first.
// weights: f32 alike, divided by their sum (at least 2^-14) if `normalised`, times scale.
// Grid: tokens, block: experts rounded up to a multiple of 64.
extern "C" __global__ __launch_bounds__(rf::kMostExperts) void rf_route_choose(
    const float* __restrict__ logits, const float* __restrict__ bias,
    const float* __restrict__ selection_bias, int32_t* chosen, float* weights, int experts,
    int num_chosen, int function, int groups, int kept_groups, int normalised, float scale) {
  __shared__ float scratch[rf::kMaxWaves];
  alignas(16) __shared__ uint32_t keys[rf::kMostExperts];
  __shared__ float scores[rf::kMostExperts];
  alignas(16) __shared__ uint32_t group_keys[rf::kMostExperts];
  __shared__ float picked[rf::kMostExperts];
  const int expert = threadIdx.x;
  const bool inside = expert < experts;
  const int64_t token = blockIdx.x;

  float value = -rf::kInfinity;
  if (inside) value = logits[token * experts + expert] + (bias ? bias[expert] : 0.0f);
  if (function == rf::kRouteSoftmax) {
    const auto larger = [](float a, float b) { return rf::max(a, b); };
    const float largest = rf::block_reduce(value, scratch, larger);
    const float raised = inside ? rf::exp(value - largest) : 0.0f;
    value = raised / rf::block_sum(raised, scratch);
  } else if (function == rf::kRouteSigmoid) {
    value = 1.0f / (1.0f + rf::exp(-value));
  }
  float score = inside && selection_bias ? value + selection_bias[expert] : value;

  if (groups > 1) {
    const int members = experts / groups;
    if (inside) scores[expert] = score;
    __syncthreads();
    group_keys[expert] = 0;
    if (expert < groups) {
      float best = -rf::kInfinity;
      float second = -rf::kInfinity;
      for (int i = expert * members; i < (expert + 1) * members; ++i) {
        second = rf::max(second, rf::min(best, scores[i]));
        best = rf::max(best, scores[i]);
      }
      group_keys[expert] = rf::in_order(members == 1 ? best : best + second);
    }
    __syncthreads();
    if (inside && rf::rank_of(group_keys, expert / members, groups) >= kept_groups) {
      score = -rf::kInfinity;
    }
  }
  keys[expert] = inside ? rf::in_order(score) : 0;
  __syncthreads();
  if (inside) {
    const int rank = rf::rank_of(keys, expert, experts);
    if (rank < num_chosen) {
      chosen[token * num_chosen + rank] = expert;
      picked[rank] = value;
    }
  }
  __syncthreads();
  if (expert >= num_chosen) return;
  float weight = picked[expert];
  if (function == rf::kRouteSoftmaxOfChosen) {
    float largest = picked[0];
    for (int i = 1; i < num_chosen; ++i) largest = rf::max(largest, picked[i]);
    float total = 0.0f;
    for (int i = 0; i < num_chosen; ++i) total += rf::exp(picked[i] - largest);
    weight = rf::exp(weight - largest) / total;
  }
  if (normalised) {
    constexpr float kLeast = 1.0f / (1 << 14);
    float total = 0.0f;
    for (int i = 0; i < num_chosen; ++i) total += picked[i];
    weight /= function == rf::kRouteSoftmaxOfChosen ? 1.0f : rf::max(total, kLeast);
  }
  weights[token * num_chosen + expert] = weight * scale;
}
