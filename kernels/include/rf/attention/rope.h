// One head of one token: its norm, its rotary embedding (Su et al. 2021, RoFormer), and its way
// into the paged cache. Written with fma, so that each kernel that does this rounds alike.
#pragma once

#include "rf/attention/packed_values.h"

namespace rf {

template <int kMaxHeadDim>
inline constexpr int kPairsOfLane = (kMaxHeadDim / 2 + kWave - 1) / kWave;

// One head of one token, spread over a wave as pairs of elements. Pair j lies in lane j % kWave.
// Pairs below rotary_dim / 2 rotate; the others hold the elements behind rotary_dim, two by two.
template <int kPairs>
struct HeadPairs {
  float x[kPairs], y[kPairs];
};

struct HeadShape {
  int dim;  // elements
  int rotary_dim;
  bool neox;
};

__device__ __forceinline__ int pair_index(int i) { return i * kWave + lane_id(); }

__device__ __forceinline__ int first_of(const HeadShape& shape, int pair) {
  return shape.neox && pair < shape.rotary_dim / 2 ? pair : 2 * pair;
}

__device__ __forceinline__ int second_of(const HeadShape& shape, int pair) {
  return shape.neox && pair < shape.rotary_dim / 2 ? pair + shape.rotary_dim / 2 : 2 * pair + 1;
}

// Calls visit(i, pair) for the pairs this lane holds.
template <int kPairs, class Visit>
__device__ __forceinline__ void for_each_pair(const HeadShape& shape, Visit visit) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int pair = pair_index(i);
    if (pair < shape.dim / 2) visit(i, pair);
  }
}

template <int kPairs>
__device__ __forceinline__ HeadPairs<kPairs> load_head(const HeadShape& shape, const float* row) {
  HeadPairs<kPairs> head{};
  for_each_pair<kPairs>(shape, [&](int i, int pair) {
    head.x[i] = row[first_of(shape, pair)];
    head.y[i] = row[second_of(shape, pair)];
  });
  return head;
}

// What a norm multiplies a head with, beside its weights.
template <int kPairs>
__device__ __forceinline__ float norm_factor(const HeadShape& shape, const HeadPairs<kPairs>& head,
                                             float eps) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    squares = fma(head.x[i], head.x[i], fma(head.y[i], head.y[i], squares));
  }
  return rsqrt(wave_sum(squares) / static_cast<float>(shape.dim) + eps);
}

// Does the rest of a norm. weight: null = 1.
template <int kPairs>
__device__ __forceinline__ void scale_head(const HeadShape& shape, HeadPairs<kPairs>& head,
                                           float factor, const float* weight) {
  for_each_pair<kPairs>(shape, [&](int i, int pair) {
    head.x[i] *= weight ? factor * weight[first_of(shape, pair)] : factor;
    head.y[i] *= weight ? factor * weight[second_of(shape, pair)] : factor;
  });
}

template <int kPairs>
__device__ __forceinline__ void normalise(const HeadShape& shape, HeadPairs<kPairs>& head,
                                          const float* weight, float eps) {
  scale_head(shape, head, norm_factor(shape, head, eps), weight);
}

// cosine and sine are this position's rows of the tables, [rotary_dim / 2].
template <int kPairs>
__device__ __forceinline__ void rotate(const HeadShape& shape, HeadPairs<kPairs>& head,
                                       const float* cosine, const float* sine) {
  for_each_pair<kPairs>(shape, [&](int i, int pair) {
    if (pair >= shape.rotary_dim / 2) return;
    const float x = head.x[i];
    const float y = head.y[i];
    head.x[i] = fma(x, cosine[pair], -(y * sine[pair]));
    head.y[i] = fma(x, sine[pair], y * cosine[pair]);
  });
}

// What a lane needs for rotating its pairs.
template <int kPairs>
struct HeadTurns {
  float cosine[kPairs], sine[kPairs];
};

// Of the rows of the tables that `rotate` takes.
template <int kPairs>
__device__ __forceinline__ HeadTurns<kPairs> load_turns(const HeadShape& shape, const float* cosine,
                                                        const float* sine) {
  HeadTurns<kPairs> turns{};
  for_each_pair<kPairs>(shape, [&](int i, int pair) {
    if (pair >= shape.rotary_dim / 2) return;
    turns.cosine[i] = cosine[pair];
    turns.sine[i] = sine[pair];
  });
  return turns;
}

// The same with weights that load_head has loaded.
template <int kPairs>
__device__ __forceinline__ void scale_head(HeadPairs<kPairs>& head, float factor,
                                           const HeadPairs<kPairs>& weights) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    head.x[i] *= factor * weights.x[i];
    head.y[i] *= factor * weights.y[i];
  }
}

template <int kPairs>
__device__ __forceinline__ void rotate(const HeadShape& shape, HeadPairs<kPairs>& head,
                                       const HeadTurns<kPairs>& turns) {
  for_each_pair<kPairs>(shape, [&](int i, int pair) {
    if (pair >= shape.rotary_dim / 2) return;
    const float x = head.x[i];
    const float y = head.y[i];
    head.x[i] = fma(x, turns.cosine[i], -(y * turns.sine[i]));
    head.y[i] = fma(x, turns.sine[i], y * turns.cosine[i]);
  });
}

template <int kPairs>
__device__ __forceinline__ void store_head(const HeadShape& shape, const HeadPairs<kPairs>& head,
                                           half* row) {
  for_each_pair<kPairs>(shape, [&](int i, int pair) {
    row[first_of(shape, pair)] = to_half(head.x[i]);
    row[second_of(shape, pair)] = to_half(head.y[i]);
  });
}

template <int kPairs>
__device__ __forceinline__ void store_cached(const HeadShape& shape, const HeadPairs<kPairs>& head,
                                             half* row, float*) {
  store_head(shape, head, row);
}

// Symmetric int8: the largest magnitude of the head becomes 127.
template <int kPairs>
__device__ __forceinline__ void store_cached(const HeadShape& shape, const HeadPairs<kPairs>& head,
                                             int8_t* row, float* scale) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    largest = max(largest, max(abs(head.x[i]), abs(head.y[i])));
  }
  largest = wave_max(largest);
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  for_each_pair<kPairs>(shape, [&](int i, int pair) {
    row[first_of(shape, pair)] = static_cast<int8_t>(rint(head.x[i] * inverse));
    row[second_of(shape, pair)] = static_cast<int8_t>(rint(head.y[i] * inverse));
  });
  if (lane_id() == 0) *scale = largest / 127.0f;
}

// Values of four bits: the largest magnitude of the turned head becomes 7. `scratch` has room for
// the head in LDS, for this wave alone.
template <int kPairs>
__device__ __forceinline__ void store_packed(const HeadShape& shape, const HeadPairs<kPairs>& head,
                                             uint32_t* row, float* scale, float* scratch) {
  for_each_pair<kPairs>(shape, [&](int i, int pair) {
    scratch[first_of(shape, pair)] = head.x[i];
    scratch[second_of(shape, pair)] = head.y[i];
  });
  wave_sync();
  const int word = lane_id();
  const bool has_word = 8 * word < shape.dim;
  float eight[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) eight[i] = has_word ? scratch[8 * word + i] : 0.0f;
  turn(eight);
  float largest = 0.0f;
#pragma unroll
  for (const float value : eight) largest = max(largest, abs(value));
  largest = wave_max(largest);
  const float inverse = largest > 0.0f ? 7.0f / largest : 0.0f;
  if (has_word) row[word] = pack_nibbles(eight, inverse);
  if (word == 0) *scale = largest / 7.0f;
}

}  // namespace rf
