// Q8_0: 32 signed bytes and their scale.
#pragma once

#include "rf/weights/formats.h"

namespace rf {

struct Q8_0 {
  static constexpr int kQuantBlocks = 1, kScales = 1, kZero = 0;
  static constexpr bool kOffset = false, kSigned = true;

  struct Block {
    static constexpr int kWeights = 32;
    half d;
    int8_t qs[32];
  };

  Items<const U4> codes;  // two a quant block: elements 0 to 15, 16 to 31
  Items<const half> d;

  static __device__ __forceinline__ Q8_0 of(auto planes, int quant_blocks) {
    return {planes.template take<U4>(2 * quant_blocks), planes.template take<half>(quant_blocks)};
  }

  static __device__ __forceinline__ void repack(const Block& block, PlanesOut planes,
                                                int quant_blocks, int quant_block) {
    const auto codes = planes.take<U4>(2 * quant_blocks);
    for (int part = 0; part < 2; ++part) {
      codes[2 * quant_block + part] = load_unaligned<U4, 2>(block.qs + 16 * part);
    }
    planes.take<half>(quant_blocks)[quant_block] = block.d;
  }

  struct Chunk {
    U4 codes[2];
    half d;
  };
  template <class Part = Whole>
  __device__ __forceinline__ Chunk load(int i, Part part = {}) const {
    return {{part.words(codes[2 * i]), part.words(codes[2 * i + 1])}, d[i]};
  }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int, int k) {
    return chunk.codes[k / 4][k % 4];
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int) {
    return {{to_float(chunk.d)}, {0.0f}};
  }
};

}  // namespace rf
