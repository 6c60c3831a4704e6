// What the two kernels of the gated delta rule in chunks pass on (Yang et al. 2024, section 3.3).
//
// With keys and queries of length 1 as rows of K and Q, G_t the sum of g up to token t of a chunk,
// and S the state before it, the changes d_t are the rows of
//
//   D = T diag(beta) (V - e^G K S),   T = (I + A)^-1,   A_ti = beta_t e^(G_t - G_i) k_t k_i, i < t
//
// and with P_ti = e^(G_t - G_i) q_t k_i, i <= t, results and next state are
//
//   O = e^G Q S + P D,   S' = e^G_64 S + (e^(G_64 - G) K)^T D
//
// T and P do not need S: they are made for all chunks at once. Tokens that the last chunk of a
// sequence lacks have beta = g = 0 and keys and queries of zeros: they change nothing.
#pragma once

#include "rf/recurrent/state_chunks.h"

namespace rf {

// Of all chunks of a step, which are as many as state_chunk() gives numbers.
struct DeltaChunks {
  half *keys, *queries;  // queries times a factor: [chunks, key_heads, kStateChunk, kStateChunkDim]
  half* keys_t;          // [chunks, key_heads, kStateChunkDim, kStateChunk]
  half *solve, *scores;  // T diag(beta), and P times a factor: [chunks, value_heads, kStateChunk,
                         // kStateChunk]
  float* decays;         // e^G and e^(G_64 - G): [chunks, value_heads, 2, kStateChunk]
  int key_heads, value_heads;

  __device__ __forceinline__ int64_t of_keys(int64_t chunk, int head) const {
    return (chunk * key_heads + head) * kStateChunk * kStateChunkDim;
  }
  __device__ __forceinline__ int64_t of_tokens(int64_t chunk, int head) const {
    return (chunk * value_heads + head) * kStateChunk * kStateChunk;
  }
  __device__ __forceinline__ int64_t of_decays(int64_t chunk, int head) const {
    return (chunk * value_heads + head) * 2 * kStateChunk;
  }
};

}  // namespace rf
