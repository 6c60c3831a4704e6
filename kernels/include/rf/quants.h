// The quantised blocks of a GGUF file, as they are stored there.
//
// Source: the GGUF type layouts of ggml (ggml-common.h) and gguf-py's quants.py. A block has one
// integer code for each weight, and a weight is scale * (code - zero) + offset or scale *
// table[code].
// Kernels do not compute from these blocks: rf_repack_* brings them into the layout of weights.h.
#pragma once

#include "rf/platform.h"

namespace rf::gguf {

struct BlockQ8_0 {
  static constexpr int kWeights = 32;
  half d;
  int8_t qs[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

// Code i of 32 in the layout that all 32-weight, 4-bit blocks share.
__device__ __forceinline__ int nibble_of_32(const uint8_t* qs, int i) {
  return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

struct BlockQ4_0 {  // IQ4_NL too
  static constexpr int kWeights = 32;
  half d;
  uint8_t qs[16];
  __device__ int code(int i) const { return nibble_of_32(qs, i); }
};
static_assert(sizeof(BlockQ4_0) == 18);

struct BlockQ4_1 {
  static constexpr int kWeights = 32;
  half d, m;
  uint8_t qs[16];
  __device__ int code(int i) const { return nibble_of_32(qs, i); }
};
static_assert(sizeof(BlockQ4_1) == 20);

struct BlockQ5_0 {
  static constexpr int kWeights = 32;
  half d;
  uint8_t qh[4];
  uint8_t qs[16];
  __device__ int code(int i) const { return nibble_of_32(qs, i) | (qh[i / 8] >> (i % 8) & 1) << 4; }
};
static_assert(sizeof(BlockQ5_0) == 22);

struct BlockQ5_1 {
  static constexpr int kWeights = 32;
  half d, m;
  uint8_t qh[4];
  uint8_t qs[16];
  __device__ int code(int i) const { return nibble_of_32(qs, i) | (qh[i / 8] >> (i % 8) & 1) << 4; }
};
static_assert(sizeof(BlockQ5_1) == 24);

struct BlockMXFP4 {
  static constexpr int kWeights = 32;
  uint8_t e;
  uint8_t qs[16];
  __device__ int code(int i) const { return nibble_of_32(qs, i); }
};
static_assert(sizeof(BlockMXFP4) == 17);

struct BlockQ2_K {
  static constexpr int kWeights = 256;
  uint8_t scales[16];  // low nibble: scale, high nibble: minimum, for 16 weights each
  uint8_t qs[64];
  half d, dmin;
  __device__ int code(int i) const { return qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3; }
};
static_assert(sizeof(BlockQ2_K) == 84);

struct BlockQ3_K {
  static constexpr int kWeights = 256;
  uint8_t hmask[32];
  uint8_t qs[64];
  uint8_t scales[12];  // sixteen 6-bit scales
  half d;
  __device__ int code(int i) const {
    const int low = qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
    return low | (hmask[i % 32] >> (i / 32) & 1) << 2;
  }
};
static_assert(sizeof(BlockQ3_K) == 110);

struct BlockQ4_K {
  static constexpr int kWeights = 256;
  half d, dmin;
  uint8_t scales[12];  // eight 6-bit scales and eight 6-bit minima
  uint8_t qs[128];
  __device__ int code(int i) const { return qs[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15; }
};
static_assert(sizeof(BlockQ4_K) == 144);

struct BlockQ5_K {
  static constexpr int kWeights = 256;
  half d, dmin;
  uint8_t scales[12];
  uint8_t qh[32];
  uint8_t qs[128];
  __device__ int code(int i) const {
    const int low = qs[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
    return low | (qh[i % 32] >> (i / 32) & 1) << 4;
  }
};
static_assert(sizeof(BlockQ5_K) == 176);

struct BlockQ6_K {
  static constexpr int kWeights = 256;
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];
  half d;
  __device__ int code(int i) const {
    const int low = ql[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
    return low | (qh[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3) << 4;
  }
};
static_assert(sizeof(BlockQ6_K) == 210);

struct BlockIQ4_XS {
  static constexpr int kWeights = 256;
  half d;
  uint16_t scales_h;
  uint8_t scales_l[4];
  uint8_t qs[128];
  __device__ int code(int i) const { return nibble_of_32(qs + i / 32 * 16, i % 32); }
};
static_assert(sizeof(BlockIQ4_XS) == 136);

}  // namespace rf::gguf
