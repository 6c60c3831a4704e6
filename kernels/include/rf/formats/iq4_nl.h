// IQ4_NL: 32 codes of four bits that stand for bytes of a table, and their scale.
#pragma once

#include "rf/formats/q4_0.h"

namespace rf {

struct IQ4_NL {
  static constexpr int kQuantBlocks = 1, kScales = 1, kZero = 0;
  static constexpr bool kOffset = false, kSigned = true;

  using Block = Q4_0::Block;

  Items<const U4> nibbles;
  Items<const half> d;

  static __device__ __forceinline__ IQ4_NL of(Planes planes, int quant_blocks) {
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
    return unpack::lookup(table(), unpack::nibbles(chunk.nibbles, k));
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int) {
    return {{to_float(chunk.d)}, {0.0f}};
  }

  // The values of IQ4_NL and IQ4_XS.
  static __device__ __forceinline__ U4 table() {
    return U4{unpack::pack(-127, -104, -83, -65), unpack::pack(-49, -35, -22, -10),
              unpack::pack(1, 13, 25, 38), unpack::pack(53, 69, 89, 113)};
  }
};

}  // namespace rf
