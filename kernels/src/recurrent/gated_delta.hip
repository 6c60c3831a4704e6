// The gated delta rule over the tokens of each sequence: rf/recurrent/gated_delta.h.
#include "rf/recurrent/gated_delta.h"

// qkv: f32 [T, ...] with rows qkv_stride apart: queries and keys of key_heads, values of
// value_heads. alpha, beta: f32 [T, value_heads], rows alpha_stride and beta_stride apart. decay,
// dt_bias: f32 [value_heads]. Value head j has key head j % key_heads if tiled_heads, else
// j / (value_heads / key_heads). state: f32 [slots, value_heads, key_dim, value_dim]. out: f32
// [T, value_heads, value_dim]. key_dim is at most 128; dims and strides of qkv are multiples of 4.
// Grid: (value_dim / 32, value_heads, sequences), block 128.
extern "C" __global__ __launch_bounds__(rf::kDeltaThreads) void rf_gated_delta(
    const float* __restrict__ qkv, const float* __restrict__ alpha, const float* __restrict__ beta,
    const float* __restrict__ decay, const float* __restrict__ dt_bias,
    const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,
    const int32_t* __restrict__ context_len, const int32_t* __restrict__ reads,
    const int32_t* __restrict__ writes, float* __restrict__ state, float* __restrict__ out,
    int64_t qkv_stride, int64_t alpha_stride, int64_t beta_stride, int32_t key_heads,
    int32_t value_heads, int32_t key_dim, int32_t value_dim, int32_t tiled_heads, float eps) {
  using namespace rf;
  __shared__ DeltaPartial partial[2];
  const auto own =
      RecurrentSequence::of({sequences, query_start, context_len, reads, writes}, blockIdx.z);
  if (own.tokens == 0) return;
  const int head = blockIdx.y;
  const int key_head = tiled_heads ? head % key_heads : head / (value_heads / key_heads);
  DeltaState part(static_cast<int>(blockIdx.x) * kDeltaColumns, key_dim, value_dim);
  const DeltaHead rates{decay[head], dt_bias[head], rsqrt(static_cast<float>(key_dim)), eps};

  const auto token_at = [&](int token) {
    const int64_t at = own.first + token;
    const float* q = qkv + at * qkv_stride + key_head * key_dim;
    const float* v = qkv + at * qkv_stride + 2 * key_heads * key_dim + head * value_dim;
    DeltaToken result;
#pragma unroll
    for (int i = 0; i < kKeyFours; ++i) {
      result.q[i] = part.of_keys(q, i);
      result.k[i] = part.of_keys(q + key_heads * key_dim, i);
    }
    result.v = part.of_values(v);
    result.alpha = alpha[at * alpha_stride + head];
    result.beta = beta[at * beta_stride + head];
    result.slot = own.writes[token];
    return result;
  };
  const auto state_in = [&](int64_t slot) {
    return state + (slot * value_heads + head) * key_dim * value_dim;
  };
  part.load(own.reads ? state_in(own.slot) : nullptr);

  DeltaToken next = token_at(0);
  for (int token = 0; token < own.tokens; ++token) {
    const DeltaToken now = next;
    if (token + 1 < own.tokens) next = token_at(token + 1);
    const Vec<float, 4> results = part.take(now, rates, partial[token % 2]);
    if (part.has_results()) {
      store16(out + ((own.first + token) * value_heads + head) * value_dim + part.column, results);
    }
    if (now.slot >= 0) part.store(state_in(now.slot));
  }
}
