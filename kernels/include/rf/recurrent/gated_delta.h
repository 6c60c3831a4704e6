// The gated delta rule (Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464), token by token:
//
//   S = exp(g) S;  d = beta (v - S^T k);  S = S + k d^T;  o = S^T q
//
// with a state S [key_dim, value_dim] for each sequence and value head, k and q of length 1 (but
// for q's factor key_dim^-1/2), beta = sigmoid(b), g = decay * softplus(alpha + dt_bias).
//
// kDeltaThreads threads, a part of a block, have some columns of one S in their registers from the
// first token to the last. A token takes one pass over them and one exchange: S^T k and S^T q come
// from the state before the token, o = exp(g) S^T q + (k q) d. Written with fma, so that all
// kernels that do this round alike.
#pragma once

#include "rf/recurrent/recurrent.h"
#include "rf/wave.h"

namespace rf {

inline constexpr int kDeltaThreads = 128;                       // of a part
inline constexpr int kDeltaColumns = 32;                        // of a part
inline constexpr int kColumnLanes = kDeltaColumns / 4;          // lane % 8 has four columns,
inline constexpr int kKeyLanes = kDeltaThreads / kColumnLanes;  // thread / 8 has
inline constexpr int kKeyFours = 128 / (4 * kKeyLanes);         // up to so many times four keys
inline constexpr int kDeltaWaves = kDeltaThreads / kWave;

struct DeltaToken {
  Vec<float, 4> k[kKeyFours], q[kKeyFours], v;
  float alpha, beta;
  int slot;  // for the state after it
};

// What a token's exchange adds up over all keys: S^T k, S^T q, k k, q q, k q.
inline constexpr int kDeltaSums = 11;
using DeltaPartial = float[kDeltaWaves][kDeltaSums][kColumnLanes];  // of a part, in LDS

// The sum over the threads with the same columns. All threads of the block take part.
__device__ __forceinline__ void add_keys(float (&sums)[kDeltaSums], DeltaPartial& partial) {
#pragma unroll
  for (float& sum : sums) {
    sum += shfl_xor<8>(sum);
    sum += shfl_xor<16>(sum);
    if constexpr (kWave == 64) sum += shfl_xor<kWave / 2>(sum);
  }
  const int column = lane_id() % kColumnLanes;
  if (lane_id() < kColumnLanes) {
#pragma unroll
    for (int i = 0; i < kDeltaSums; ++i) partial[wave_id() % kDeltaWaves][i][column] = sums[i];
  }
  lds_barrier();
#pragma unroll
  for (int i = 0; i < kDeltaSums; ++i) {
    sums[i] = partial[0][i][column];
    for (int wave = 1; wave < kDeltaWaves; ++wave) sums[i] += partial[wave][i][column];
  }
}

// The rates of a value head.
struct DeltaHead {
  float decay, bias, query_scale, eps;
};

// What a thread has of a state: four columns of some rows.
struct DeltaState {
  Vec<float, 4> s[kKeyFours][4];
  int column, key_dim, value_dim;

  // column: the first of the part's.
  __device__ __forceinline__ DeltaState(int first_column, int key_dim, int value_dim)
      : column(first_column + static_cast<int>(threadIdx.x) % kColumnLanes * 4),
        key_dim(key_dim),
        value_dim(value_dim) {}

  __device__ __forceinline__ bool has_column() const { return column < value_dim; }
  // Whether this thread has the results of its columns.
  __device__ __forceinline__ bool has_results() const {
    return threadIdx.x % kDeltaThreads < kColumnLanes && has_column();
  }
  __device__ __forceinline__ int key_of(int four) const {
    const int thread = static_cast<int>(threadIdx.x) % kDeltaThreads;
    return (four * kKeyLanes + thread / kColumnLanes) * 4;
  }

  // Four of queries or keys, zeros beyond their end.
  __device__ __forceinline__ Vec<float, 4> of_keys(const float* x, int four) const {
    return key_of(four) < key_dim ? Vec<float, 4>(load16(x + key_of(four))) : Vec<float, 4>(0.0f);
  }
  // Four of the values.
  __device__ __forceinline__ Vec<float, 4> of_values(const float* x) const {
    return has_column() ? Vec<float, 4>(load16(x + column)) : Vec<float, 4>(0.0f);
  }

  // from: f32 [key_dim, value_dim], or null for zeros.
  __device__ __forceinline__ void load(const float* from) {
#pragma unroll
    for (int i = 0; i < kKeyFours; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const bool there = from && has_column() && key_of(i) < key_dim;
        s[i][k] = there ? Vec<float, 4>(load16(from + (key_of(i) + k) * value_dim + column))
                        : Vec<float, 4>(0.0f);
      }
    }
  }

  __device__ __forceinline__ void store(float* to) const {
    if (!has_column()) return;
#pragma unroll
    for (int i = 0; i < kKeyFours; ++i) {
      if (key_of(i) >= key_dim) continue;
#pragma unroll
      for (int k = 0; k < 4; ++k) store16(to + (key_of(i) + k) * value_dim + column, s[i][k]);
    }
  }

  // Takes a token in, and returns its results of these columns. All threads of the block call it.
  __device__ __forceinline__ Vec<float, 4> take(const DeltaToken& now, const DeltaHead& head,
                                                DeltaPartial& partial) {
#pragma clang fp contract(off)
    using Four = Vec<float, 4>;
    Four of_k(0.0f), of_q(0.0f), kk(0.0f), qq(0.0f), kq(0.0f);
#pragma unroll
    for (int i = 0; i < kKeyFours; ++i) {
      kk = fma(now.k[i], now.k[i], kk);
      qq = fma(now.q[i], now.q[i], qq);
      kq = fma(now.k[i], now.q[i], kq);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        of_k = fma(s[i][k], Four(now.k[i][k]), of_k);
        of_q = fma(s[i][k], Four(now.q[i][k]), of_q);
      }
    }
    const auto sum_four = [](Four x) { return (x[0] + x[1]) + (x[2] + x[3]); };
    float sums[kDeltaSums] = {of_k[0], of_k[1], of_k[2],      of_k[3],      of_q[0],     of_q[1],
                              of_q[2], of_q[3], sum_four(kk), sum_four(qq), sum_four(kq)};
    add_keys(sums, partial);

    const float k_factor = rsqrt(sums[8] + head.eps);
    const float q_factor = rsqrt(sums[9] + head.eps) * head.query_scale;
    const float kept = exp(head.decay * softplus(now.alpha + head.bias));
    const float strength = sigmoid(now.beta);
    Four d, o;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      d[i] = strength * fma(-(kept * k_factor), sums[i], now.v[i]);
      o[i] = q_factor * fma(kept, sums[4 + i], k_factor * sums[10] * d[i]);
    }
#pragma unroll
    for (int i = 0; i < kKeyFours; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        s[i][k] = fma(d, Four(now.k[i][k] * k_factor), s[i][k] * kept);
      }
    }
    return o;
  }
};

}  // namespace rf
