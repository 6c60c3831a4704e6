// Q1_0: 128 weights that are a scale with a sign.
#pragma once

#include "rf/weights/formats.h"

namespace rf {

struct Q1_0 {
  static constexpr int kQuantBlocks = 2, kScales = 1, kZero = 1;
  static constexpr bool kOffset = false, kSigned = false;

  struct Block {
    static constexpr int kWeights = 128;
    half d;
    uint8_t qs[16];
  };

  Items<const U2> bits;  // of two quant blocks
  Items<const half> d;   // of four quant blocks

  static __device__ __forceinline__ Q1_0 of(Planes planes, int quant_blocks) {
    return {planes.take<U2>(quant_blocks / 2), planes.take<half>(quant_blocks / 4)};
  }

  static __device__ __forceinline__ void repack(const Block& block, PlanesOut planes,
                                                int quant_blocks, int quant_block) {
    const auto stored = load_unaligned<uint32_t, 2>(block.qs + quant_block % 4 * 4);
    const auto bits = planes.take<U2>(quant_blocks / 2);
    reinterpret_cast<uint32_t*>(&bits[quant_block / 2])[quant_block % 2] =
        pack_bits([&](int i) { return stored >> i; });
    if (quant_block % 4 == 0) planes.take<half>(quant_blocks / 4)[quant_block / 4] = block.d;
  }

  struct Chunk {
    U2 bits;
    half d;
  };
  template <class Part = Whole>
  __device__ __forceinline__ Chunk load(int i, Part part = {}) const {
    return {part.bits(bits[i]), d[i / 2]};
  }
  // 2 or 0, around 1.
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int u, int k) {
    return unpack::bits<1>(chunk.bits[u], k);
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int) {
    return {{to_float(chunk.d)}, {0.0f}};
  }
};

}  // namespace rf
