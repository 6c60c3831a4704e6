// Q4_K: 256 codes of four bits; of each 32, a scale and a minimum of six bits.
#pragma once

#include "rf/weights/formats.h"

namespace rf {

struct Q4_K {
  static constexpr int kQuantBlocks = 2, kScales = 1, kZero = 0;
  static constexpr bool kOffset = true, kSigned = false;
  static constexpr bool kStaged = true;  // gemm_few_rows.h
  static constexpr int kGemvBlocks = 3;

  struct Block {
    static constexpr int kWeights = 256;
    half d, dmin;
    uint8_t scales[12];  // eight 6-bit scales and eight 6-bit minima
    uint8_t qs[128];
    __device__ int code(int i) const { return qs[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15; }
  };

  Items<const U4> nibbles;
  Items<const U4> header;  // of eight quant blocks: d, dmin, scales[12] of the super-block

  static __device__ __forceinline__ Q4_K of(auto planes, int quant_blocks) {
    return {planes.template take<U4>(quant_blocks), planes.template take<U4>(quant_blocks / 8)};
  }

  static __device__ __forceinline__ void repack(const Block& block, PlanesOut planes,
                                                int quant_blocks, int quant_block) {
    planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, quant_block % 8 * kQuantBlock);
    if (quant_block % 8 == 0) planes.take<U4>(quant_blocks / 8)[quant_block / 8] = header_of(block);
  }

  struct Chunk {
    U4 nibbles[2];
    U4 header;
  };
  template <class Part = Whole>
  __device__ __forceinline__ Chunk load(int i, Part part = {}) const {
    return {{part.words(nibbles[2 * i]), part.words(nibbles[2 * i + 1])}, header[i / 4]};
  }
  static __device__ __forceinline__ U4 plain_nibbles(const Chunk& chunk, int u) {
    return chunk.nibbles[u];
  }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int u, int k) {
    return unpack::nibbles(chunk.nibbles[u], k);
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int p, int u) {
    return scales_of(chunk.header, p, u);
  }

  // Scale and minimum of quant blocks 2 p and 2 p + 1 of a super-block of Q4_K or Q5_K, from its
  // header {d, dmin, scales[12]}. Bytes of the 6-bit fields: scales[0..3] and [4..7] hold the low
  // four scales and minima; [8..11] the low four bits of the others, whose high bits lie above the
  // former.
  static __device__ __forceinline__ Scales<1> scales_of(U4 header, int p, int quant_block) {
    const bool low = p < 2;
    const int shift = (p & 1) * 16;
    const uint32_t own = low ? 0x3f3fu : 0x3030u;  // bits of words 1 and 2
    const uint32_t rest = low ? 0u : 0x0f0fu;      // bits of word 3
    const int own_shift = low ? shift : shift + 2;
    const uint32_t scale = (header[1] >> own_shift & own) | (header[3] >> shift & rest);
    const uint32_t minimum = (header[2] >> own_shift & own) | (header[3] >> (shift + 4) & rest);
    const Half2 d = unpack::as_halves(header[0]);
    return {{to_float(d[0]) * unpack::byte_of(scale, quant_block)},
            {-to_float(d[1]) * unpack::byte_of(minimum, quant_block)}};
  }

  // Those of all quant blocks of a super-block, unpacked at once: with the same bits, in fewer
  // instructions.
  class AllScales {
   public:
    AllScales() = default;
    __device__ __forceinline__ explicit AllScales(const auto& chunk) {
      const U4 header = chunk.header;
      scales_[0] = header[1] & 0x3f3f3f3fu;
      minima_[0] = header[2] & 0x3f3f3f3fu;
      scales_[1] = (header[3] & 0x0f0f0f0fu) | (header[1] >> 2 & 0x30303030u);
      minima_[1] = (header[3] >> 4 & 0x0f0f0f0fu) | (header[2] >> 2 & 0x30303030u);
      const Half2 d = unpack::as_halves(header[0]);
      of_scales_ = to_float(d[0]);
      of_minima_ = -to_float(d[1]);
    }

    // Of quant block i, which is known after unrolling.
    __device__ __forceinline__ Scales<1> operator[](int i) const {
      return {{multiplied(scales_[i / 4], i % 4, of_scales_)},
              {multiplied(minima_[i / 4], i % 4, of_minima_)}};
    }

   private:
    // Byte `index` of a word times a half, which is exact. The byte lies under the exponent of
    // 2^23, as the last bits of a float32.
    static __device__ __forceinline__ float multiplied(uint32_t word, int index, float by) {
      constexpr float kTop = 8388608.0f;
      const uint32_t selectors = 0x07040400u | static_cast<uint32_t>(index);
      const uint32_t above = byte_select(word, __builtin_bit_cast(uint32_t, kTop), selectors);
      return fma(__builtin_bit_cast(float, above), by, -kTop * by);
    }

    uint32_t scales_[2], minima_[2];  // a byte each
    float of_scales_, of_minima_;
  };

  // The same header, from a block of either.
  template <class Block>
  static __device__ __forceinline__ U4 header_of(const Block& block) {
    const Half2 d{block.d, block.dmin};
    const auto scales = load_unaligned<PackedScales>(block.scales);
    return U4{__builtin_bit_cast(uint32_t, d), scales.word[0], scales.word[1], scales.word[2]};
  }
};

}  // namespace rf
