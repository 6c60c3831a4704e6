// The product of many tokens with a router on matrix instructions, as exact as in float32.
//
// A value is a half and what that leaves of it, 2^11 times as large, as another: 22 bits, or within
// 2^-25 where it is small, as some matrix instructions take halves below 2^-14 for zeros. Three
// products of halves make the sum; that of the two rests would be below float32's own rounding.
#pragma once

#include "rf/gemm/gemm_tiles.h"
#include "rf/mma/mma.h"

namespace rf {

class RouteGemm {
 public:
  static constexpr int kThreads = 256;
  static constexpr int kTile = 64;  // tokens, and experts, of a block

  // logits[part][t][e] = x[t] @ router[e] for tile blockIdx.y of tokens, blockIdx.x of experts and
  // part blockIdx.z of the features. The last row of the router, if tiles leave it over as that of
  // a shared expert, is multiplied by the lanes of the first, which have x: a tile more for it
  // would read all of x again.
  static __device__ __forceinline__ void run(const float* x, const float* router, float* logits,
                                             int tokens, int experts, int features) {
    __shared__ Lds lds;
    const int first_token = blockIdx.y * kTile;
    const int first_expert = blockIdx.x * kTile;
    const int steps = features / kTileK;
    const int part = blockIdx.z;
    const int begin = steps * part / static_cast<int>(gridDim.z) * kTileK;
    const int end = steps * (part + 1) / static_cast<int>(gridDim.z) * kTileK;
    const int row = threadIdx.x / kTileChunks;
    const int chunk = threadIdx.x % kTileChunks;
    const float* const from[2] = {
        x + static_cast<int64_t>(min(first_token + row, tokens - 1)) * features + chunk * 8,
        router + static_cast<int64_t>(min(first_expert + row, experts - 1)) * features + chunk * 8};
    const bool has_last = blockIdx.x == 0 && experts > static_cast<int>(gridDim.x) * kTile;
    const float* const last = router + static_cast<int64_t>(experts - 1) * features + chunk * 8;
    float sum_of_last = 0.0f;
    // What a step reads is asked for three steps before: two are on their way.
    Held held[2][2];
    const auto load = [&](int slot, int k) {
      if (k >= end) return;
      for (int i = 0; i < 2; ++i) held[slot][i] = {load16(from[i] + k), load16(from[i] + k + 4)};
    };
    const auto put = [&](int slot, int k) {
      if (has_last) sum_of_last = dot(held[slot][0], last + k, sum_of_last);
      for (int i = 0; i < 2; ++i) {
        const Parts parts = split(held[slot][i]);
        HalfTile{lds.tiles[slot][i][0]}(row, chunk) = parts.high;
        HalfTile{lds.tiles[slot][i][1]}(row, chunk) = parts.low;
      }
    };

    load(0, begin);
    load(1, begin + kTileK);
    put(0, begin);
    load(0, begin + 2 * kTileK);
    lds_barrier();
    Mma::Acc sums[kColumnTiles] = {};
    Mma::Acc rests[kColumnTiles] = {};
    for (int k = begin; k < end; k += 2 * kTileK) {
#pragma unroll
      for (int slot = 0; slot < 2; ++slot) {
        const int next = k + (slot + 1) * kTileK;
        if (next - kTileK >= end) break;
        multiply(lds, slot, sums, rests);
        if (next < end) put(1 - slot, next);
        load(1 - slot, next + 2 * kTileK);
        lds_barrier();
      }
    }
    logits += static_cast<int64_t>(part) * tokens * experts;
    if (has_last) {
      static_assert(kTileChunks == 4);
      sum_of_last += shfl_xor<1>(sum_of_last);
      sum_of_last += shfl_xor<2>(sum_of_last);
      const int64_t token = first_token + row;
      if (chunk == 0 && token < tokens) logits[token * experts + experts - 1] = sum_of_last;
    }
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
      for (int i = 0; i < kAccValues; ++i) {
        const int token = first_token + wave_row() + Mma::row(i);
        const int expert = first_expert + wave_column() + 16 * j + Mma::column(i);
        if (token >= tokens || expert >= experts) continue;
        logits[static_cast<int64_t>(token) * experts + expert] =
            fma(rests[j].value[i], 1.0f / kRest, sums[j].value[i]);
      }
    }
  }

 private:
  static constexpr int kWaves = kThreads / kWave;
  static constexpr int kRowTiles = kTile / 16;  // of a wave each
  static constexpr int kColumnTiles = kTile / 16 / (kWaves / kRowTiles);
  static constexpr float kRest = 2048.0f;
  static constexpr float kLargestHalf = 65504.0f;
  static_assert(kThreads == kTile * kTileChunks);

  struct Lds {
    U4 tiles[2][2][2][kTile * kTileChunks];  // by step, of tokens and experts, halves and rests
  };
  struct Held {
    Vec<float, 4> values[2];
  };
  struct Parts {
    U4 high, low;
  };

  static __device__ __forceinline__ int wave_row() { return uniform(wave_id()) % kRowTiles * 16; }
  static __device__ __forceinline__ int wave_column() {
    return uniform(wave_id()) / kRowTiles * (kColumnTiles * 16);
  }

  static __device__ __forceinline__ float dot(const Held& x, const float* row, float sum) {
    for (int i = 0; i < 2; ++i) {
      const Vec<float, 4> four = load16(row + 4 * i);
      for (int k = 0; k < 4; ++k) sum = fma(x.values[i][k], four[k], sum);
    }
    return sum;
  }

  static __device__ __forceinline__ Parts split(const Held& held) {
    Vec<half, 8> high, low;
    for (int i = 0; i < 8; ++i) {
      const float value = min(max(held.values[i / 4][i % 4], -kLargestHalf), kLargestHalf);
      high[i] = abs(value) < kLeastHalf ? half{} : to_half(value);
      low[i] = to_half((value - static_cast<float>(high[i])) * kRest);
    }
    return {__builtin_bit_cast(U4, high), __builtin_bit_cast(U4, low)};
  }

  static __device__ __forceinline__ void multiply(Lds& lds, int slot,
                                                  Mma::Acc (&sums)[kColumnTiles],
                                                  Mma::Acc (&rests)[kColumnTiles]) {
    const auto tile = [&](int operand, int part) {
      return HalfTile{lds.tiles[slot][operand][part]};
    };
    // Without matrix instructions a step needs many registers: those of one step at a time.
    constexpr int kStepsAtOnce = Mma::kStepChunks == 1 ? 1 : kTileChunks;
#pragma unroll kStepsAtOnce
    for (int chunk = 0; chunk < kTileChunks; chunk += LdsMma::kStepChunks) {
      const auto high = LdsMma::load_a(tile(0, 0), wave_row(), chunk);
      const auto low = LdsMma::load_a(tile(0, 1), wave_row(), chunk);
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        const int column = wave_column() + 16 * j;
        const auto router = LdsMma::load_b(tile(1, 0), column, chunk);
        LdsMma::multiply(sums[j], high, router);
        LdsMma::multiply(rests[j], low, router);
        LdsMma::multiply(rests[j], high, LdsMma::load_b(tile(1, 1), column, chunk));
      }
    }
  }
};

}  // namespace rf
