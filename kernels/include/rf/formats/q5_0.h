// Q5_0: 32 codes of five bits around 16 and their scale.
#pragma once

#include "rf/weights/formats.h"

namespace rf {

struct Q5_0 {
  static constexpr int kQuantBlocks = 1, kScales = 1, kZero = 16;
  static constexpr bool kOffset = false, kSigned = false;

  struct Block {
    static constexpr int kWeights = 32;
    half d;
    uint8_t qh[4];
    uint8_t qs[16];
    __device__ int code(int i) const {
      return nibble_of_32(qs, i) | (qh[i / 8] >> (i % 8) & 1) << 4;
    }
  };

  Items<const U4> nibbles;
  Items<const uint32_t> bits;
  Items<const half> d;

  static __device__ __forceinline__ Q5_0 of(auto planes, int quant_blocks) {
    return {planes.template take<U4>(quant_blocks), planes.template take<uint32_t>(quant_blocks),
            planes.template take<half>(quant_blocks)};
  }

  static __device__ __forceinline__ void repack(const Block& block, PlanesOut planes,
                                                int quant_blocks, int quant_block) {
    planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, 0);
    planes.take<uint32_t>(quant_blocks)[quant_block] = pack_bits(block, 0, 4);
    planes.take<half>(quant_blocks)[quant_block] = block.d;
  }

  struct Chunk {
    U4 nibbles;
    uint32_t bits;
    half d;
  };
  template <class Part = Whole>
  __device__ __forceinline__ Chunk load(int i, Part part = {}) const {
    return {part.words(nibbles[i]), part.bits(bits[i]), d[i]};
  }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int, int k) {
    return unpack::nibbles(chunk.nibbles, k) | unpack::bits<4>(chunk.bits, k);
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int) {
    return {{to_float(chunk.d)}, {0.0f}};
  }
};

}  // namespace rf
