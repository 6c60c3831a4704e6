// Q4_0: 32 codes of four bits around 8 and their scale.
#pragma once

#include "rf/formats.h"

namespace rf {

struct Q4_0 {
  static constexpr int kQuantBlocks = 1, kScales = 1, kZero = 8;
  static constexpr bool kOffset = false, kSigned = false;

  struct Block {
    static constexpr int kWeights = 32;
    half d;
    uint8_t qs[16];
    __device__ int code(int i) const { return nibble_of_32(qs, i); }
  };

  Items<const U4> nibbles;
  Items<const half> d;

  static __device__ __forceinline__ Q4_0 of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks), planes.take<half>(quant_blocks)};
  }

  static __device__ __forceinline__ void repack(const Block& block, PlanesOut planes,
                                                int quant_blocks, int quant_block) {
    planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, 0);
    planes.take<half>(quant_blocks)[quant_block] = block.d;
  }

  struct Chunk {
    U4 nibbles;
    half d;
  };
  __device__ __forceinline__ Chunk load(int i) const { return {nibbles[i], d[i]}; }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int, int k) {
    return unpack::nibbles(chunk.nibbles, k);
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int) {
    return {{to_float(chunk.d)}, {0.0f}};
  }
};

}  // namespace rf
