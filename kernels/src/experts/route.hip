// The experts of each token and their weights.
#include "rf/experts/logit_sums.h"
#include "rf/experts/route.h"

namespace rf {

inline constexpr int kRouteThreads = 256;

// logits[t][e] = x[t] @ router[e] for a tile of tokens and one of experts. Lanes divide K the same
// way whatever the tile, so a token's logits do not depend on how many are computed together.
template <int kTokens, int kExperts>
__device__ __forceinline__ void route_logits(const float* x, const float* router, float* logits,
                                             int tokens, int experts, int features) {
  constexpr int kLogits = kTokens * kExperts;
  __shared__ float parts[kRouteThreads / kWave][kLogits];
  const int first_token = blockIdx.y * kTokens;
  const int first_expert = blockIdx.x * kExperts;
  float sums[kLogits] = {};
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
        float& sum = sums[t * kExperts + e];
        for (int k = 0; k < 4; ++k) sum = fma(values[k], of_router[e][k], sum);
      }
    }
  }
  store_wave_sums(sums, parts[wave_id()]);
  __syncthreads();
  const int i = threadIdx.x;
  const int t = i / kExperts;
  const int e = i % kExperts;
  if (t >= kTokens || first_token + t >= tokens || first_expert + e >= experts) return;
  float sum = 0.0f;
  for (int wave = 0; wave < kRouteThreads / kWave; ++wave) sum += parts[wave][i];
  logits[static_cast<int64_t>(first_token + t) * experts + first_expert + e] = sum;
}

}  // namespace rf

// x: f32 [tokens, features], router: f32 [experts, features], features a multiple of 4. logits: f32
// [tokens, experts]. Grid: (ceil(experts / 4), ceil(tokens / 4)), block 256.
extern "C" __global__ __launch_bounds__(rf::kRouteThreads) void rf_route_logits(
    const float* __restrict__ x, const float* __restrict__ router, float* logits, int tokens,
    int experts, int features) {
  rf::route_logits<4, 4>(x, router, logits, tokens, experts, features);
}

// sums: int64 [count] of logits (logit_sums.h), become zeros. Grid: 1.
extern "C" __global__ __launch_bounds__(rf::kMostExperts) void rf_clear_logits(int64_t* sums,
                                                                               int count) {
  rf::clear_logits(sums, count);
}

// logits: f32 [splits, tokens, experts], parts that are added up. bias, selection_bias: f32
// [experts] or null; the first is added to the logits, the second to what `function` (experts.h)
// makes of them, to choose by and not to weight. Of `groups` of experts, those of the best
// kept_groups may be chosen: whose two best are the largest sum. chosen: int32 [tokens,
// num_chosen], the best first, of equal ones the first; counted from first_own, and kElsewhere for
// those that are not among the num_own from there. weights: f32 alike, divided by their sum (at
// least 2^-14) if `normalised`, times factor, and times weight_scale of the expert, f32 [experts],
// if that is not null. With num_shared = 1, there is a column more in chosen and weights, and with
// weighs_shared = 1 in logits: see RouteRule. shares: see Choices. Grid: tokens, block: experts
// rounded up to a multiple of 64.
extern "C" __global__ __launch_bounds__(rf::kMostExperts) void rf_route_choose(
    const float* __restrict__ logits, const float* __restrict__ bias,
    const float* __restrict__ selection_bias, const float* __restrict__ weight_scale,
    int32_t* chosen, float* weights, float* shares, int experts, int num_chosen, int function,
    int groups, int kept_groups, int normalised, float factor, int first_own, int num_own,
    int num_shared, int weighs_shared, int splits) {
  rf::let_next_begin_if_few();
  __shared__ rf::RouteChoice::Lds lds;
  const int64_t split_size = static_cast<int64_t>(gridDim.x) * (experts + weighs_shared);
  const rf::RouteRule rule{bias,      selection_bias, weight_scale, experts,         num_chosen,
                           function,  groups,         kept_groups,  normalised != 0, factor,
                           first_own, num_own,        num_shared,   weighs_shared};
  const int64_t token = blockIdx.x;
  const rf::SplitLogits own{logits + token * rule.num_logits(), splits, split_size};
  rf::RouteChoice(lds, rule).run(own, rf::Choices{chosen, weights, shares}.of(rule, token));
}
