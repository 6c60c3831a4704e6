// Q2_K: 256 codes of two bits; of each 16, a scale and a minimum of four bits.
#pragma once

#include "rf/weights/formats.h"

namespace rf {

struct Q2_K {
  static constexpr int kQuantBlocks = 2, kScales = 2, kZero = 0;
  static constexpr bool kOffset = true, kSigned = false;

  struct Block {
    static constexpr int kWeights = 256;
    uint8_t scales[16];  // low nibble: scale, high nibble: minimum, for 16 weights each
    uint8_t qs[64];
    half d, dmin;
    __device__ int code(int i) const { return qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3; }
  };

  Items<const U4> pairs;            // of two quant blocks
  Items<const uint32_t> scale_min;  // of two quant blocks: scales[16] of the super-block
  Items<const Half2> d;             // of eight quant blocks: d, dmin

  static __device__ __forceinline__ Q2_K of(auto planes, int quant_blocks) {
    return {planes.template take<U4>(quant_blocks / 2),
            planes.template take<uint32_t>(quant_blocks / 2),
            planes.template take<Half2>(quant_blocks / 8)};
  }

  static __device__ __forceinline__ void repack(const Block& block, PlanesOut planes,
                                                int quant_blocks, int quant_block) {
    const auto pairs = planes.take<U4>(quant_blocks / 2);
    reinterpret_cast<U2*>(&pairs[quant_block / 2])[quant_block % 2] =
        pack_pairs(block, quant_block % 8 * kQuantBlock, 0);
    const auto scale_min = planes.take<uint32_t>(quant_blocks / 2);
    reinterpret_cast<uint16_t*>(&scale_min[quant_block / 2])[quant_block % 2] =
        load_unaligned<uint16_t>(block.scales + quant_block % 8 * 2);
    if (quant_block % 8 == 0)
      planes.take<Half2>(quant_blocks / 8)[quant_block / 8] = Half2{block.d, block.dmin};
  }

  struct Chunk {
    U4 pairs;
    uint32_t scale_min;
    Half2 d;
  };
  template <class Part = Whole>
  __device__ __forceinline__ Chunk load(int i, Part part = {}) const {
    return {part.pairs(pairs[i]), scale_min[i], d[i / 4]};
  }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int u, int k) {
    return unpack::pairs<0>(U2{chunk.pairs[2 * u], chunk.pairs[2 * u + 1]}, k);
  }
  static __device__ __forceinline__ Scales<2> scales(const Chunk& chunk, int, int u) {
    const float d = to_float(chunk.d[0]);
    const float dmin = -to_float(chunk.d[1]);
    const uint32_t scale = chunk.scale_min & 0x0f0f0f0fu;
    const uint32_t minimum = chunk.scale_min >> 4 & 0x0f0f0f0fu;
    return {{d * unpack::byte_of(scale, 2 * u), d * unpack::byte_of(scale, 2 * u + 1)},
            {dmin * unpack::byte_of(minimum, 2 * u), dmin * unpack::byte_of(minimum, 2 * u + 1)}};
  }
};

}  // namespace rf
