// Q6_K: 256 codes of six bits around 32; of each 16, a scale of eight bits.
#pragma once

#include "rf/weights/formats.h"

namespace rf {

struct Q6_K {
  static constexpr int kQuantBlocks = 2, kScales = 2, kZero = 32;
  static constexpr bool kOffset = false, kSigned = false;
  static constexpr bool kStaged = true;  // gemm_few_rows.h

  struct Block {
    static constexpr int kWeights = 256;
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    half d;
    __device__ int code(int i) const {
      const int low = ql[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
      return low | (qh[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3) << 4;
    }
  };

  Items<const U4> nibbles;
  Items<const U4> pairs;        // of two quant blocks: the high bits
  Items<const uint32_t> scale;  // of two quant blocks: four signed bytes
  Items<const half> d;          // of eight quant blocks

  static __device__ __forceinline__ Q6_K of(auto planes, int quant_blocks) {
    return {planes.template take<U4>(quant_blocks), planes.template take<U4>(quant_blocks / 2),
            planes.template take<uint32_t>(quant_blocks / 2),
            planes.template take<half>(quant_blocks / 8)};
  }

  static __device__ __forceinline__ void repack(const Block& block, PlanesOut planes,
                                                int quant_blocks, int quant_block) {
    planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, quant_block % 8 * kQuantBlock);
    const auto pairs = planes.take<U4>(quant_blocks / 2);
    reinterpret_cast<U2*>(&pairs[quant_block / 2])[quant_block % 2] =
        pack_pairs(block, quant_block % 8 * kQuantBlock, 4);
    const auto scale = planes.take<uint32_t>(quant_blocks / 2);
    reinterpret_cast<uint16_t*>(&scale[quant_block / 2])[quant_block % 2] =
        load_unaligned<uint16_t>(block.scales + quant_block % 8 * 2);
    if (quant_block % 8 == 0) planes.take<half>(quant_blocks / 8)[quant_block / 8] = block.d;
  }

  struct Chunk {
    U4 nibbles[2];
    U4 pairs;
    uint32_t scale;
    half d;
  };
  template <class Part = Whole>
  __device__ __forceinline__ Chunk load(int i, Part part = {}) const {
    return {{part.words(nibbles[2 * i]), part.words(nibbles[2 * i + 1])},
            part.pairs(pairs[i]),
            scale[i],
            d[i / 4]};
  }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int u, int k) {
    return unpack::nibbles(chunk.nibbles[u], k) |
           unpack::pairs<4>(U2{chunk.pairs[2 * u], chunk.pairs[2 * u + 1]}, k);
  }
  // As code(), but kSignedStep * (code - kZero) as signed bytes: six bits at the top of a byte, the
  // highest of them flipped.
  static constexpr int kSignedStep = 4;
  static __device__ __forceinline__ uint32_t signed_code(const Chunk& chunk, int u, int k) {
    const uint32_t word = chunk.nibbles[u][k % 4];
    const uint32_t low = (k < 4 ? word << 2 : word >> 2) & 0x3c3c3c3cu;
    const uint32_t high = unpack::pairs<6>(U2{chunk.pairs[2 * u], chunk.pairs[2 * u + 1]}, k);
    return low | (high ^ 0x80808080u);
  }
  static __device__ __forceinline__ Scales<2> scales(const Chunk& chunk, int, int u) {
    const float d = to_float(chunk.d);
    return {{d * unpack::signed_byte_of(chunk.scale, 2 * u),
             d * unpack::signed_byte_of(chunk.scale, 2 * u + 1)},
            {0.0f, 0.0f}};
  }
};

}  // namespace rf
