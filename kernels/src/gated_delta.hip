// The gated delta rule (Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464), token by token:
//
//   S = exp(g) S;  d = beta (v - S^T k);  S = S + k d^T;  o = S^T q
//
// with a state S [key_dim, value_dim] for each sequence and value head, k and q of length 1 (but
// for q's factor key_dim^-1/2), beta = sigmoid(b), g = decay * softplus(alpha + dt_bias).
//
// A block has some columns of one S in its registers from the first token to the last. A token
// takes one pass over them and one exchange: S^T k and S^T q come from the state before the token,
// o = exp(g) S^T q + (k q) d.
#include "rf/recurrent.h"
#include "rf/wave.h"

namespace rf {

inline constexpr int kDeltaThreads = 128;
inline constexpr int kDeltaColumns = 32;                        // of a block
inline constexpr int kColumnLanes = kDeltaColumns / 4;          // lane % 8 has four columns,
inline constexpr int kKeyLanes = kDeltaThreads / kColumnLanes;  // thread / 8 has
inline constexpr int kKeyFours = 128 / (4 * kKeyLanes);         // up to so many times four keys
inline constexpr int kDeltaWaves = kDeltaThreads / kWave;

using Four = Vec<float, 4>;

struct DeltaToken {
  Four k[kKeyFours], q[kKeyFours], v;
  float alpha, beta;
  int slot;  // for the state after it
};

// What a token's exchange adds up over all keys: S^T k, S^T q, k k, q q, k q.
inline constexpr int kDeltaSums = 11;

// The sum over the threads with the same columns.
__device__ __forceinline__ void add_keys(float (&sums)[kDeltaSums],
                                         float (*partial)[kDeltaSums][kColumnLanes]) {
#pragma unroll
  for (float& sum : sums) {
    sum += shfl_xor<8>(sum);
    sum += shfl_xor<16>(sum);
    if constexpr (kWave == 64) sum += shfl_xor<kWave / 2>(sum);
  }
  const int column = lane_id() % kColumnLanes;
  if (lane_id() < kColumnLanes) {
#pragma unroll
    for (int i = 0; i < kDeltaSums; ++i) partial[wave_id()][i][column] = sums[i];
  }
  lds_barrier();
#pragma unroll
  for (int i = 0; i < kDeltaSums; ++i) {
    sums[i] = partial[0][i][column];
    for (int wave = 1; wave < kDeltaWaves; ++wave) sums[i] += partial[wave][i][column];
  }
}

}  // namespace rf

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
  __shared__ float partial[2][kDeltaWaves][kDeltaSums][kColumnLanes];
  const auto own =
      RecurrentSequence::of({sequences, query_start, context_len, reads, writes}, blockIdx.z);
  if (own.tokens == 0) return;
  const int head = blockIdx.y;
  const int key_head = tiled_heads ? head % key_heads : head / (value_heads / key_heads);
  const int thread = threadIdx.x;
  const int column = static_cast<int>(blockIdx.x) * kDeltaColumns + thread % kColumnLanes * 4;
  const bool has_column = column < value_dim;
  const auto key_of = [&](int four) { return (four * kKeyLanes + thread / kColumnLanes) * 4; };
  const float head_decay = decay[head], head_bias = dt_bias[head];

  const auto token_at = [&](int token) {
    const int64_t at = own.first + token;
    const float* row = qkv + at * qkv_stride;
    const float* q = row + key_head * key_dim;
    DeltaToken result;
#pragma unroll
    for (int i = 0; i < kKeyFours; ++i) {
      const bool has_key = key_of(i) < key_dim;
      result.q[i] = has_key ? Four(load16(q + key_of(i))) : Four(0.0f);
      result.k[i] = has_key ? Four(load16(q + key_heads * key_dim + key_of(i))) : Four(0.0f);
    }
    const float* v = row + 2 * key_heads * key_dim + head * value_dim + column;
    result.v = has_column ? Four(load16(v)) : Four(0.0f);
    result.alpha = alpha[at * alpha_stride + head];
    result.beta = beta[at * beta_stride + head];
    result.slot = own.writes[token];
    return result;
  };

  const auto state_in = [&](int64_t slot) {
    return state + ((slot * value_heads + head) * key_dim) * value_dim + column;
  };
  const float* before = state_in(own.slot);
  Four s[kKeyFours][4];
#pragma unroll
  for (int i = 0; i < kKeyFours; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool there = own.reads && has_column && key_of(i) < key_dim;
      s[i][k] = there ? Four(load16(before + (key_of(i) + k) * value_dim)) : Four(0.0f);
    }
  }

  const float query_scale = rsqrt(static_cast<float>(key_dim));
  DeltaToken next = token_at(0);
  for (int token = 0; token < own.tokens; ++token) {
    const DeltaToken now = next;
    if (token + 1 < own.tokens) next = token_at(token + 1);
    Four of_k(0.0f), of_q(0.0f), kk(0.0f), qq(0.0f), kq(0.0f);
#pragma unroll
    for (int i = 0; i < kKeyFours; ++i) {
      kk += now.k[i] * now.k[i];
      qq += now.q[i] * now.q[i];
      kq += now.k[i] * now.q[i];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        of_k += s[i][k] * now.k[i][k];
        of_q += s[i][k] * now.q[i][k];
      }
    }
    const auto sum_four = [](Four x) { return (x[0] + x[1]) + (x[2] + x[3]); };
    float sums[kDeltaSums] = {of_k[0], of_k[1], of_k[2],      of_k[3],      of_q[0],     of_q[1],
                              of_q[2], of_q[3], sum_four(kk), sum_four(qq), sum_four(kq)};
    add_keys(sums, partial[token % 2]);

    const float k_factor = rsqrt(sums[8] + eps), q_factor = rsqrt(sums[9] + eps) * query_scale;
    const float kept = exp(head_decay * softplus(now.alpha + head_bias));
    const float strength = sigmoid(now.beta);
    Four d, o;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      d[i] = strength * (now.v[i] - kept * k_factor * sums[i]);
      o[i] = q_factor * (kept * sums[4 + i] + k_factor * sums[10] * d[i]);
    }
#pragma unroll
    for (int i = 0; i < kKeyFours; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) s[i][k] = s[i][k] * kept + d * (now.k[i][k] * k_factor);
    }
    if (thread < kColumnLanes && has_column) {
      store16(out + ((own.first + token) * value_heads + head) * value_dim + column, o);
    }
    if (now.slot < 0 || !has_column) continue;
    float* after = state_in(now.slot);
#pragma unroll
    for (int i = 0; i < kKeyFours; ++i) {
      if (key_of(i) >= key_dim) continue;
#pragma unroll
      for (int k = 0; k < 4; ++k) store16(after + (key_of(i) + k) * value_dim, s[i][k]);
    }
  }
}
