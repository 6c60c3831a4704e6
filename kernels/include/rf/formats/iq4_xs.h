// IQ4_XS: 256 codes of four bits that stand for bytes of a table; of each 32, a scale of six bits.
#pragma once

#include "rf/formats/iq4_nl.h"

namespace rf {

struct IQ4_XS {
  static constexpr int kQuantBlocks = 2, kScales = 1, kZero = 0;
  static constexpr bool kOffset = false, kSigned = true;

  struct Block {
    static constexpr int kWeights = 256;
    half d;
    uint16_t scales_h;
    uint8_t scales_l[4];
    uint8_t qs[128];
    __device__ int code(int i) const { return nibble_of_32(qs + i / 32 * 16, i % 32); }
  };

  Items<const U4> nibbles;
  Items<const U2> header;  // of eight quant blocks: d, scales_h, scales_l[4] of the super-block

  static __device__ __forceinline__ IQ4_XS of(auto planes, int quant_blocks) {
    return {planes.template take<U4>(quant_blocks), planes.template take<U2>(quant_blocks / 8)};
  }

  static __device__ __forceinline__ void repack(const Block& block, PlanesOut planes,
                                                int quant_blocks, int quant_block) {
    planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, quant_block % 8 * kQuantBlock);
    if (quant_block % 8 == 0)
      planes.take<U2>(quant_blocks / 8)[quant_block / 8] = load_unaligned<U2, 2>(&block);
  }

  struct Chunk {
    U4 nibbles[2];
    U2 header;
  };
  template <class Part = Whole>
  __device__ __forceinline__ Chunk load(int i, Part part = {}) const {
    return {{part.words(nibbles[2 * i]), part.words(nibbles[2 * i + 1])}, header[i / 4]};
  }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int u, int k) {
    return unpack::lookup(IQ4_NL::table(), chunk.nibbles[u], k);
  }
  // Quant block j of a super-block: low four bits are nibble j of scales_l, high two bits 2 j of
  // scales_h.
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int p, int u) {
    const int j = 2 * p + u;
    const uint32_t low = chunk.header[1] >> (4 * j) & 15u;
    const uint32_t high = chunk.header[0] >> (16 + 2 * j) & 3u;
    const float d = to_float(unpack::as_halves(chunk.header[0])[0]);
    return {{d * (static_cast<float>(low | high << 4) - 32.0f)}, {0.0f}};
  }
};

}  // namespace rf
