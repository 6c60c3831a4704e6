// A norm together with the router that reads it. The router's product does not wait for the norm:
// its factor is common to all terms of a sum, and comes last.
#include "rf/experts/logit_sums.h"
#include "rf/experts/route.h"
#include "rf/last_block.h"
#include "rf/norms/rms_norm.h"

namespace rf {

inline constexpr int kNormRouteThreads = 512;

// What is normed, and what routes it.
struct NormRoute {
  const float* delta;        // [tokens, features]
  const float* residual;     // [tokens, features]
  const float* post_weight;  // [features]; not null: the norm of delta is added
  const float* weight;       // [features], of the norm that the router reads
  const float* router;       // [experts, features]
  float* logits;             // [tokens, experts]
  int tokens;
  int experts;
  int features;
  float eps;
};

// 1 / root mean square of what is added, of a tile of tokens.
template <int kTokens>
__device__ __forceinline__ void post_factors(const NormRoute& x, int first_token,
                                             float (&factors)[kTokens]) {
  __shared__ float partial[kMaxWaves];
  const int threads = static_cast<int>(blockDim.x);
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const int64_t token = min(first_token + t, x.tokens - 1);
    float squares = 0.0f;
    for (int i = threadIdx.x * 4; i < x.features; i += threads * 4) {
      const Vec<float, 4> values = load16(x.delta + token * x.features + i);
      squares += sum_four(values * values);
    }
    const float mean = block_sum(squares, partial) / static_cast<float>(x.features);
    factors[t] = rsqrt(mean + x.eps);
  }
}

// As squares_of() begins.
__device__ __forceinline__ float sum_of_squares(Vec<float, 4> x) {
#pragma clang fp contract(off)
  return sum_four(x * x);
}

// logits[t][e] = rms_norm(delta[t] + residual[t]) @ router[e] for a tile of tokens and one of
// experts. A token's logits do not depend on how many are computed together.
template <int kTokens, int kExperts>
__device__ __forceinline__ void norm_logits(const NormRoute& x, int first_token, int first_expert) {
  constexpr int kLogits = kTokens * kExperts;
  constexpr int kOfLane = kLogits >= kActLanes ? kLogits / kActLanes : 1;
  static_assert(kLogits == 1 || kLogits >= kActLanes,
                "each lane has logits of its own, or all one");
  __shared__ LogitSum parts[kNormRouteThreads / kWave][kLogits];
  __shared__ float squares[kTokens][kNormRouteThreads * 4 * kNormSteps / kActBlock];
  const int threads = static_cast<int>(blockDim.x);
  const int blocks = (x.features + kActBlock - 1) / kActBlock;
  LogitSum sums[kOfLane] = {};
  int first_logit = 0;
  float of_delta[kTokens];
  for (int t = 0; t < kTokens; ++t) of_delta[t] = 1.0f;
  if (x.post_weight) post_factors(x, first_token, of_delta);
  for (int from = 0; from < x.features; from += threads * 4) {
    const int i = from + static_cast<int>(threadIdx.x) * 4;
    const bool inside = i < x.features;
    const auto load = [&](const float* row) { return inside ? load16(row + i) : Vec<float, 4>{}; };
    Vec<float, 4> of_router[kExperts];
#pragma unroll
    for (int e = 0; e < kExperts; ++e) {
      const int64_t expert = min(first_expert + e, x.experts - 1);
      of_router[e] = load(x.router + expert * x.features);
    }
    const Vec<float, 4> weights = load(x.weight);
    Vec<float, 4> post_weights = 1.0f;  // multiplies nothing else
    if (x.post_weight) post_weights = load(x.post_weight);
    float products[kLogits], of_squares[kTokens], square[1];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int64_t row = static_cast<int64_t>(min(first_token + t, x.tokens - 1)) * x.features;
      const Vec<float, 4> total =
          added(load(x.delta + row), of_delta[t], post_weights, load(x.residual + row));
      of_squares[t] = sum_of_squares(total);
      const Vec<float, 4> values = weighted(total, weights);
#pragma unroll
      for (int e = 0; e < kExperts; ++e) {
        products[t * kExperts + e] = logit_product(values, of_router[e]);
      }
    }
    const int own_token = lane_sums(of_squares, square);
    const int block = i / kActBlock;
    if (block < blocks && lane_id() % kActLanes < kTokens) squares[own_token][block] = square[0];
    LogitSum found[kOfLane];
    first_logit = logit_parts(products, found);
    for (int k = 0; k < kOfLane; ++k) sums[k] += found[k];
  }
  for (int k = 0; k < kOfLane; ++k) {
    const LogitSum sum = wave_logit(sums[k]);
    if (lane_id() < (kLogits == 1 ? 1 : kActLanes)) parts[wave_id()][first_logit + k] = sum;
  }
  __syncthreads();
  if (wave_id() != 0) return;
  const int t = lane_id() / kExperts, e = lane_id() % kExperts;
  float factor = 0.0f;
#pragma unroll
  for (int k = 0; k < kTokens; ++k) {
    const float found = factor_of(squares[k], blocks, x.features, x.eps);
    factor = k == t ? found : factor;
  }
  if (t >= kTokens || first_token + t >= x.tokens || first_expert + e >= x.experts) return;
  LogitSum sum = 0;
  for (int wave = 0; wave < threads / kWave; ++wave) sum += parts[wave][lane_id()];
  x.logits[static_cast<int64_t>(first_token + t) * x.experts + first_expert + e] =
      logit_of(sum, factor);
}

// The first kTokens blocks of a row of the grid norm a token each, the others make logits of them.
// Returns whether this block has made some.
template <int kTokens, int kExperts>
__device__ __forceinline__ bool norm_route(const NormRoute& x, float* total, const NormOutput& to,
                                           const NormOutput& other) {
  let_next_begin_if_few();
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  const int block = static_cast<int>(blockIdx.x);
  if (block < kTokens) {
    const int token = first_token + block;
    if (token < x.tokens) {
      rms_norm<true>(token, WholeRows{x.delta}, {x.residual, total, x.post_weight}, to, other,
                     x.features, x.eps, [] {});
    }
    return false;
  }
  norm_logits<kTokens, kExperts>(x, first_token, (block - kTokens) * kExperts);
  return true;
}

}  // namespace rf

// delta, residual: f32 [tokens, hidden_size]. total: their sum, in neither's place, or with a
// post_weight, f32 [hidden_size], that of the residual and the norm of delta. weight: of the norm
// of that, which goes to out_* in the forms that are not null; other_weight: of another one, to
// other_*, or null. router_weight: of the one that the router reads. router: f32 [experts,
// hidden_size]. logits: f32 [tokens, experts], what it makes of that.
// Grid: (4 + ceil(experts / 4), ceil(tokens / 4)), block as for rf_add_rms_norm, at most 512.
extern "C" __global__ __launch_bounds__(rf::kNormRouteThreads) void rf_add_rms_norm_logits(
    const float* __restrict__ delta, const float* __restrict__ residual,
    const float* __restrict__ post_weight, const float* __restrict__ weight,
    const float* __restrict__ other_weight, const float* __restrict__ router_weight,
    const float* __restrict__ router, float* total, float* logits, float* __restrict__ out_f32,
    rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,
    rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset, float* __restrict__ other_f32,
    rf::half* __restrict__ other_f16, int8_t* __restrict__ other_q,
    rf::ActScale* __restrict__ other_q_scale, int32_t other_q_lo_offset, int tokens, int experts,
    int hidden_size, float eps) {
  rf::norm_route<4, 4>(
      {delta, residual, post_weight, router_weight, router, logits, tokens, experts, hidden_size,
       eps},
      total, {weight, {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}},
      {other_weight, {other_f32, other_f16, other_q, other_q_scale, other_q_lo_offset}});
}

// The same and, in the last block of a token, what rf_route_choose does: for very few tokens.
// arrived: zeros [tokens], and afterwards again. chosen and what is not named here: as there.
// Grid: (1 + experts + weighs_shared, tokens), block as above, and at least as many as experts.
extern "C" __global__ __launch_bounds__(rf::kNormRouteThreads) void rf_add_rms_norm_route(
    const float* __restrict__ delta, const float* __restrict__ residual,
    const float* __restrict__ post_weight, const float* __restrict__ weight,
    const float* __restrict__ other_weight, const float* __restrict__ router_weight,
    const float* __restrict__ router, float* total, float* logits, float* __restrict__ out_f32,
    rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,
    rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset, float* __restrict__ other_f32,
    rf::half* __restrict__ other_f16, int8_t* __restrict__ other_q,
    rf::ActScale* __restrict__ other_q_scale, int32_t other_q_lo_offset, int tokens,
    int hidden_size, float eps, uint32_t* arrived, const float* __restrict__ bias,
    const float* __restrict__ selection_bias, const float* __restrict__ weight_scale,
    int32_t* chosen, float* weights, float* shares, int experts, int num_chosen, int function,
    int groups, int kept_groups, int normalised, float factor, int first_own, int num_own,
    int num_shared, int weighs_shared) {
  __shared__ rf::RouteChoice::Lds lds;
  const int64_t token = blockIdx.y;
  const rf::RouteRule rule{bias,      selection_bias, weight_scale, experts,         num_chosen,
                           function,  groups,         kept_groups,  normalised != 0, factor,
                           first_own, num_own,        num_shared,   weighs_shared};
  const int num_logits = rule.num_logits();
  const bool has_logits = rf::norm_route<1, 1>(
      {delta, residual, post_weight, router_weight, router, logits, tokens, num_logits, hidden_size,
       eps},
      total, {weight, {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}},
      {other_weight, {other_f32, other_f16, other_q, other_q_scale, other_q_lo_offset}});
  if (!has_logits || !rf::is_last_block(arrived + token, num_logits)) return;
  rf::RouteChoice(lds, rule).run(rf::SplitLogits{logits + token * num_logits},
                                 rf::Choices{chosen, weights, shares}.of(rule, token));
}
