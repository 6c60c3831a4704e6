// MXFP4: 32 numbers E2M1 and their scale, a power of two (OCP Microscaling Formats 1.0).
#pragma once

#include "rf/nibbles.h"

namespace rf {

struct MXFP4 : FourBits<MXFP4, uint8_t> {
  static constexpr int kZero = 0;
  static constexpr bool kOffset = false, kSigned = true;

  struct Block {
    static constexpr int kWeights = 32;
    uint8_t e;
    uint8_t qs[16];
    __device__ int code(int i) const { return nibble_of_32(qs, i); }
    __device__ uint8_t scale() const { return e; }
  };

  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int, int k) {
    return unpack::lookup(table(), chunk.nibbles, k);
  }
  // 2^(e - 128): half the E8M0 scale, as the table's values are doubled. Below 2^-126 the float32
  // is subnormal.
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int) {
    const uint32_t e = chunk.scale;
    const uint32_t float_bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
    return {{__builtin_bit_cast(float, float_bits)}, {0.0f}};
  }

  // The values of E2M1, doubled.
  static __device__ __forceinline__ U4 table() {
    return U4{unpack::pack(0, 1, 2, 3), unpack::pack(4, 6, 8, 12), unpack::pack(0, -1, -2, -3),
              unpack::pack(-4, -6, -8, -12)};
  }
};

}  // namespace rf
