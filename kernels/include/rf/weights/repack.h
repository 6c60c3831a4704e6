// From the blocks of a file to planes: what the formats' headers share.
#pragma once

#include "rf/weights/weights.h"

namespace rf {

using PlanesOut = PlaneWalk<uint8_t>;  // to write a matrix

// Twelve bytes of scales, as k-quants have them.
struct PackedScales {
  uint32_t word[3];
};

// Code i of 32 in the layout that all blocks of 32 codes of four bits share.
__device__ __forceinline__ int nibble_of_32(const uint8_t* qs, int i) {
  return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

// The codes of the quant block that begins at `first`, packed as weights.h says.
template <class Block>
__device__ __forceinline__ U4 pack_nibbles(const Block& block, int first) {
  U4 packed{};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const uint32_t low = block.code(first + i) & 15;
    const uint32_t high = block.code(first + 16 + i) & 15;
    packed[i / 4] |= (low | high << 4) << (8 * (i % 4));
  }
  return packed;
}
template <class Block>
__device__ __forceinline__ U2 pack_pairs(const Block& block, int first, int from_bit) {
  U2 packed{};
#pragma unroll
  for (int i = 0; i < kQuantBlock; ++i) {
    const uint32_t pair = block.code(first + i) >> from_bit & 3;
    packed[i / 16] |= pair << (8 * (i % 4) + 2 * (i % 16 / 4));
  }
  return packed;
}
// bit(i) is that of element i.
template <class Bit>
__device__ __forceinline__ uint32_t pack_bits(const Bit& bit) {
  uint32_t packed = 0;
#pragma unroll
  for (int i = 0; i < kQuantBlock; ++i) {
    packed |= (static_cast<uint32_t>(bit(i)) & 1) << (8 * (i % 4) + i / 4);
  }
  return packed;
}
template <class Block>
__device__ __forceinline__ uint32_t pack_bits(const Block& block, int first, int from_bit) {
  return pack_bits([&](int i) { return block.code(first + i) >> from_bit; });
}

}  // namespace rf
