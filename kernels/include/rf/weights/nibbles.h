// What formats of 32 codes of four bits share.
//
// Such a format derives from FourBits and adds kZero, kOffset, kSigned and its Block, with code(i)
// and scale(), the Scale of its 32 codes.
#pragma once

#include "rf/weights/formats.h"

namespace rf {

// A scale, or one and a minimum.
__device__ __forceinline__ Scales<1> scales_of(half d) { return {{to_float(d)}, {0.0f}}; }
__device__ __forceinline__ Scales<1> scales_of(Half2 dm) {
  return {{to_float(dm[0])}, {to_float(dm[1])}};
}

template <class Format, class Scale>
struct FourBits {
  static constexpr int kQuantBlocks = 1, kScales = 1;

  Items<const U4> nibbles;
  Items<const Scale> scale;

  static __device__ __forceinline__ Format of(auto planes, int quant_blocks) {
    return {{planes.template take<U4>(quant_blocks), planes.template take<Scale>(quant_blocks)}};
  }

  template <class Block>
  static __device__ __forceinline__ void repack(const Block& block, PlanesOut planes,
                                                int quant_blocks, int quant_block) {
    planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, 0);
    planes.take<Scale>(quant_blocks)[quant_block] = block.scale();
  }

  struct Chunk {
    U4 nibbles;
    Scale scale;
  };
  template <class Part = Whole>
  __device__ __forceinline__ Chunk load(int i, Part part = {}) const {
    return {part.words(nibbles[i]), scale[i]};
  }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int, int k) {
    return unpack::nibbles(chunk.nibbles, k);
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int) {
    return scales_of(chunk.scale);
  }
};

}  // namespace rf
