// Codes that are looked up: the formats whose blocks hold indices of a table, and signs.
//
// Lanes look up different entries at once. So a kernel copies the table to LDS when it begins: LDS
// serves a wave in about as many cycles as lanes meet in one bank, caches take a cycle for each of
// their lines that is touched, and lookups that are loads would have to wait for the weights on
// their way, as AMD's loads complete in order. Tables are small: at most 4 KiB.
#pragma once

#include "rf/weights/formats.h"

namespace rf {

// Table has kCount constants kEntries, 16 bytes aligned.
template <class Table>
class Codebook {
 public:
  // Copies the table to LDS; all threads of the block call it.
  static __device__ __forceinline__ void load() {
    constexpr int kPieces = Table::kCount / 4;
    for (int i = threadIdx.x; i < kPieces; i += blockDim.x) {
      reinterpret_cast<U4*>(lds())[i] = reinterpret_cast<const U4*>(Table::kEntries)[i];
    }
    __syncthreads();
  }

  // Entry `index`, which byte `byte` of `low` and `high` << 8 make together.
  static __device__ __forceinline__ uint32_t at(uint32_t low, int byte, uint32_t high = 0) {
    return lds()[(low >> (8 * byte) & 0xffu) | high << 8];
  }

 private:
  static __device__ __forceinline__ uint32_t* lds() {
    alignas(16) __shared__ uint32_t entries[Table::kCount];
    return entries;
  }
};

// The signs of a quant block, a word as the plane `bits` of weights.h has them. Some formats store
// seven of eight: an even number of each eight is negative. The place of the eighth, element
// 8 g + 7, is bit 25 + 2 g, and holds something else there.
namespace signs {

inline constexpr uint32_t kSevens = 0x55ffffffu;

// Puts the eighth signs into their places.
__device__ __forceinline__ uint32_t complete(uint32_t word) {
  const uint32_t sevens = word & kSevens;
  uint32_t parity = sevens ^ sevens >> 16;  // bit 2 g, and others
  parity ^= parity >> 8;
  parity ^= parity >> 1;
  return sevens | (parity & 0x55u) << 25;
}

// What is in the place of the eighth of elements 8 g to 8 g + 7.
__device__ __forceinline__ uint32_t other(uint32_t word, int g) { return word >> (25 + 2 * g) & 1; }

// All four of them, as a number.
__device__ __forceinline__ uint32_t others(uint32_t word) {
  uint32_t bits = word >> 25 & 0x55u;
  bits = (bits | bits >> 1) & 0x33u;
  return (bits | bits >> 2) & 0x0fu;
}

// The word of 32 signs as files store them: bit i is that of element i. `sevens` has seven bits of
// each eight.
__device__ __forceinline__ uint32_t pack(uint32_t stored) {
  return pack_bits([&](int i) { return stored >> i; });
}
__device__ __forceinline__ uint32_t pack(uint32_t sevens, uint32_t others) {
  return pack_bits(
      [&](int i) { return i % 8 < 7 ? sevens >> (i / 8 * 7 + i % 8) : others >> (i / 8); });
}

// Four bytes above 0, of which those of elements 4 k to 4 k + 3 with a sign are negated.
__device__ __forceinline__ uint32_t apply(uint32_t bytes, uint32_t word, int k) {
  const uint32_t negative = unpack::bits<0>(word, k);
  return (bytes ^ negative * 0xffu) + negative;
}

}  // namespace signs

// Entries of IQ2 formats are eight weights 8, 25 or 43, which are 0, 1 and 2 in the low nibbles
// (the first four weights) and the high ones. Gives weights 4 h to 4 h + 3 with the signs of
// elements 4 k to 4 k + 3.
__device__ __forceinline__ uint32_t iq2_weights(uint32_t entry, uint32_t word, int k) {
  constexpr uint32_t kPositive = unpack::pack(8, 25, 43, 0);
  constexpr uint32_t kNegative = unpack::pack(-8, -25, -43, 0);
  const uint32_t level = entry >> (k % 2 * 4) & 0x03030303u;
  return byte_select(kPositive, kNegative, level | unpack::bits<2>(word, k));
}

// Scales of IQ2 formats with two of them: the low nibble of `nibbles` is the first.
__device__ __forceinline__ Scales<2> iq2_scales(half d, uint32_t nibbles) {
  const float step = to_float(d) * 0.125f;
  const uint32_t first = 2 * (nibbles & 15) + 1, second = 2 * (nibbles >> 4 & 15) + 1;
  return {{step * static_cast<float>(first), step * static_cast<float>(second)}, {0.0f, 0.0f}};
}

}  // namespace rf
