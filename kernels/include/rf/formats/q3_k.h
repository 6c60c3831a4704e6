// Q3_K: 256 codes of three bits around 4; of each 16, a scale of six bits.
#pragma once

#include "rf/weights/formats.h"

namespace rf {

struct Q3_K {
  static constexpr int kQuantBlocks = 2, kScales = 2, kZero = 4;
  static constexpr bool kOffset = false, kSigned = false;

  struct Block {
    static constexpr int kWeights = 256;
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];  // sixteen 6-bit scales
    half d;
    __device__ int code(int i) const {
      const int low = qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
      return low | (hmask[i % 32] >> (i / 32) & 1) << 2;
    }
  };

  Items<const U4> pairs;             // of two quant blocks
  Items<const U2> bits;              // of two quant blocks
  Items<const PackedScales> packed;  // of eight quant blocks: scales[12] of the super-block
  Items<const half> d;               // of eight quant blocks

  static __device__ __forceinline__ Q3_K of(auto planes, int quant_blocks) {
    return {planes.template take<U4>(quant_blocks / 2), planes.template take<U2>(quant_blocks / 2),
            planes.template take<PackedScales>(quant_blocks / 8),
            planes.template take<half>(quant_blocks / 8)};
  }

  static __device__ __forceinline__ void repack(const Block& block, PlanesOut planes,
                                                int quant_blocks, int quant_block) {
    const auto pairs = planes.take<U4>(quant_blocks / 2);
    reinterpret_cast<U2*>(&pairs[quant_block / 2])[quant_block % 2] =
        pack_pairs(block, quant_block % 8 * kQuantBlock, 0);
    const auto bits = planes.take<U2>(quant_blocks / 2);
    reinterpret_cast<uint32_t*>(&bits[quant_block / 2])[quant_block % 2] =
        pack_bits(block, quant_block % 8 * kQuantBlock, 2);
    if (quant_block % 8 != 0) return;
    planes.take<PackedScales>(quant_blocks / 8)[quant_block / 8] =
        load_unaligned<PackedScales>(block.scales);
    planes.take<half>(quant_blocks / 8)[quant_block / 8] = block.d;
  }

  struct Chunk {
    U4 pairs;
    U2 bits;
    PackedScales packed;
    half d;
  };
  template <class Part = Whole>
  __device__ __forceinline__ Chunk load(int i, Part part = {}) const {
    return {part.pairs(pairs[i]), part.bits(bits[i]), packed[i / 4], d[i / 4]};
  }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int u, int k) {
    return unpack::pairs<0>(U2{chunk.pairs[2 * u], chunk.pairs[2 * u + 1]}, k) |
           unpack::bits<2>(chunk.bits[u], k);
  }
  // Of scales 4 p to 4 p + 3 the low four bits are nibble p / 2 of word p % 2, the high two bits
  // 2 p and 2 p + 1 of the bytes of word 2. All are biased by 32.
  static __device__ __forceinline__ Scales<2> scales(const Chunk& chunk, int p, int u) {
    const uint32_t low = (p & 1 ? chunk.packed.word[1] : chunk.packed.word[0]) >> (p / 2 * 4);
    const uint32_t high = chunk.packed.word[2] >> (2 * p);
    const uint32_t scale = (low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4;
    const float d = to_float(chunk.d);
    return {{d * (unpack::byte_of(scale, 2 * u) - 32.0f),
             d * (unpack::byte_of(scale, 2 * u + 1) - 32.0f)},
            {0.0f, 0.0f}};
  }
};

}  // namespace rf
