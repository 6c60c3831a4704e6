// Q5_K: 256 codes of five bits; of each 32, a scale and a minimum of six bits.
#pragma once

#include "rf/formats/q4_k.h"

namespace rf {

struct Q5_K {
  static constexpr int kQuantBlocks = 2, kScales = 1, kZero = 0;
  static constexpr bool kOffset = true, kSigned = false;

  struct Block {
    static constexpr int kWeights = 256;
    half d, dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
    __device__ int code(int i) const {
      const int low = qs[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
      return low | (qh[i % 32] >> (i / 32) & 1) << 4;
    }
  };

  Items<const U4> nibbles;
  Items<const U2> bits;    // of two quant blocks
  Items<const U4> header;  // as in Q4_K

  static __device__ __forceinline__ Q5_K of(auto planes, int quant_blocks) {
    return {planes.template take<U4>(quant_blocks), planes.template take<U2>(quant_blocks / 2),
            planes.template take<U4>(quant_blocks / 8)};
  }

  static __device__ __forceinline__ void repack(const Block& block, PlanesOut planes,
                                                int quant_blocks, int quant_block) {
    planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, quant_block % 8 * kQuantBlock);
    const auto bits = planes.take<U2>(quant_blocks / 2);
    reinterpret_cast<uint32_t*>(&bits[quant_block / 2])[quant_block % 2] =
        pack_bits(block, quant_block % 8 * kQuantBlock, 4);
    if (quant_block % 8 == 0)
      planes.take<U4>(quant_blocks / 8)[quant_block / 8] = Q4_K::header_of(block);
  }

  struct Chunk {
    U4 nibbles[2];
    U2 bits;
    U4 header;
  };
  template <class Part = Whole>
  __device__ __forceinline__ Chunk load(int i, Part part = {}) const {
    return {{part.words(nibbles[2 * i]), part.words(nibbles[2 * i + 1])},
            part.bits(bits[i]),
            header[i / 4]};
  }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int u, int k) {
    return unpack::nibbles(chunk.nibbles[u], k) | unpack::bits<4>(chunk.bits[u], k);
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int p, int u) {
    return Q4_K::scales_of(chunk.header, p, u);
  }
  using AllScales = Q4_K::AllScales;
};

}  // namespace rf
