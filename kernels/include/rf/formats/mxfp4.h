// MXFP4: 32 numbers E2M1 and their scale, a power of two (OCP Microscaling Formats 1.0).
#pragma once

#include "rf/weights/nibbles.h"

namespace rf {

struct MXFP4 : FourBits<MXFP4, uint8_t> {
  static constexpr int kZero = 12;
  static constexpr bool kOffset = false, kSigned = false;
  // On an H200 they hide more of the time that unpacking takes than three, which would have enough.
  static constexpr int kDirectBlocks = 4;
  static constexpr bool kHasCouples = true;  // measured there, too

  struct Block {
    static constexpr int kWeights = 32;
    uint8_t e;
    uint8_t qs[16];
    __device__ int code(int i) const { return nibble_of_32(qs, i); }
    __device__ uint8_t scale() const { return e; }
  };

  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int, int k) {
    return mirror_select(magnitudes(), kZero, chunk.nibbles[k % 4], k >= 4);
  }
  // The same codes, as halves. The three parts of an E2M1 number are those of a half whose exponent
  // has another bias, zero and the subnormal number included: moved to their places and multiplied,
  // they cost less than the table.
  static __device__ __forceinline__ U2 code_halves(const Chunk& chunk, int, int k) {
    constexpr float kDoubled = 32768.0f;  // 2^14 for the bias
    const uint32_t plane = chunk.nibbles[k % 4];
    const uint32_t numbers = k < 4 ? plane << 4 : plane;  // the upper four bits of each byte
    U2 halves;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const uint32_t upper = byte_select(numbers, 0u, pair ? 0x03040204u : 0x01040004u);
      const uint32_t bits = (upper & 0x80008000u) | (upper >> 3 & 0x0e000e00u);
      halves[pair] = __builtin_bit_cast(uint32_t, unpack::as_halves(bits) * to_half(kDoubled));
    }
    return halves;
  }
  // 2^(e - 128): half the E8M0 scale, as the table's values are doubled. Below 2^-126 the float32
  // is subnormal.
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int) {
    const uint32_t e = chunk.scale;
    const uint32_t float_bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
    return {{__builtin_bit_cast(float, float_bits)}, {0.0f}};
  }

  // 2^(e - 127), which the scale is half of; of e = 0, nothing. It is one instruction.
  static __device__ __forceinline__ float doubled_scale(uint32_t e) {
    return __builtin_bit_cast(float, e << 23);
  }

  // The values of E2M1 without their signs, doubled.
  static __device__ __forceinline__ U2 magnitudes() {
    return U2{unpack::pack(0, 1, 2, 3), unpack::pack(4, 6, 8, 12)};
  }
};

}  // namespace rf
