// IQ2_XXS: 256 weights, eight together an entry of a codebook of 256 with their signs, of which
// seven are stored; of each 32, a scale of four bits.
#pragma once

#include "rf/weights/codebook.h"

namespace rf {

struct IQ2_XXS {
  static constexpr int kQuantBlocks = 2, kScales = 1, kZero = 0;
  static constexpr bool kOffset = false, kSigned = true;

  struct Table;
  using Codebook = rf::Codebook<Table>;

  struct Block {
    static constexpr int kWeights = 256;
    half d;
    uint16_t qs[32];  // of each quant block, four indices of eight bits, signs and scale
  };

  Items<const U4> codes;  // of two quant blocks: indices; signs, and the scale between them
  Items<const half> d;    // of eight quant blocks

  static __device__ __forceinline__ IQ2_XXS of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks / 2), planes.take<half>(quant_blocks / 8)};
  }

  static __device__ __forceinline__ void repack(const Block& block, PlanesOut planes,
                                                int quant_blocks, int quant_block) {
    const U2 stored = load_unaligned<U2, 2>(block.qs + quant_block % 8 * 4);
    const auto codes = planes.take<U4>(quant_blocks / 2);
    reinterpret_cast<U2*>(&codes[quant_block / 2])[quant_block % 2] =
        U2{stored[0], signs::pack(stored[1], stored[1] >> 28)};
    if (quant_block % 8 == 0) planes.take<half>(quant_blocks / 8)[quant_block / 8] = block.d;
  }

  struct Chunk {
    U4 codes;
    half d;
  };
  __device__ __forceinline__ Chunk load(int i) const { return {codes[i], d[i / 4]}; }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int u, int k) {
    const uint32_t entry = Codebook::at(chunk.codes[2 * u], k / 2);
    return iq2_weights(entry, signs::complete(chunk.codes[2 * u + 1]), k);
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int u) {
    const uint32_t scale = 2 * signs::others(chunk.codes[2 * u + 1]) + 1;
    return {{to_float(chunk.d) * 0.125f * static_cast<float>(scale)}, {0.0f}};
  }
};

// Eight weights each: see iq2_weights().
struct IQ2_XXS::Table {
  static constexpr int kCount = 256;
  alignas(16) static constexpr uint32_t kEntries[kCount] = {
      0x00000000, 0x00000002, 0x00000101, 0x00000200, 0x00000202, 0x00010001, 0x00010100,
      0x00020000, 0x00020002, 0x00020200, 0x00020202, 0x01000001, 0x01000100, 0x01010000,
      0x01010200, 0x01020001, 0x01020100, 0x02000000, 0x02000002, 0x02000202, 0x02020002,
      0x00000011, 0x00000110, 0x00010010, 0x00010111, 0x01000010, 0x02000110, 0x02010210,
      0x00000020, 0x00000022, 0x00020022, 0x02000022, 0x00001001, 0x00001100, 0x00011000,
      0x00021001, 0x00021100, 0x01001000, 0x01001002, 0x01001200, 0x01021000, 0x02001001,
      0x02001100, 0x02011000, 0x02021100, 0x00001010, 0x00001012, 0x00001210, 0x00021010,
      0x01001112, 0x01021211, 0x02001010, 0x02011011, 0x00001221, 0x00011020, 0x01001020,
      0x02001120, 0x02021120, 0x00002000, 0x00002101, 0x00002200, 0x00012100, 0x00022200,
      0x01002001, 0x01002100, 0x01012000, 0x01012002, 0x02002200, 0x00002110, 0x01002010,
      0x00002022, 0x00012120, 0x00100001, 0x00100100, 0x00110000, 0x00120001, 0x01100000,
      0x01120000, 0x02100100, 0x02110000, 0x02110101, 0x00100010, 0x00100210, 0x00120010,
      0x01110010, 0x01110212, 0x02100010, 0x00120120, 0x01100121, 0x00101000, 0x00101200,
      0x00121000, 0x00121101, 0x01101201, 0x02101000, 0x00111210, 0x01121012, 0x00101020,
      0x00111122, 0x00102001, 0x00102100, 0x00112000, 0x01102000, 0x02102001, 0x00102010,
      0x00102111, 0x02122010, 0x01112021, 0x00200000, 0x00200002, 0x00200202, 0x01200100,
      0x01220001, 0x02200000, 0x02200002, 0x00220211, 0x01200210, 0x00200020, 0x00200022,
      0x00201001, 0x00201100, 0x00211000, 0x01201000, 0x01211102, 0x00201010, 0x01201011,
      0x01221110, 0x02211020, 0x00202200, 0x00222000, 0x02212100, 0x01202120, 0x10000001,
      0x10000100, 0x10010000, 0x10010200, 0x10020001, 0x10020100, 0x11000000, 0x11000200,
      0x11010102, 0x11020000, 0x12000001, 0x12000100, 0x12010000, 0x10000010, 0x10020010,
      0x11020011, 0x12000010, 0x12000111, 0x10000021, 0x10010020, 0x11000220, 0x11010122,
      0x11020220, 0x10001000, 0x10001200, 0x10021000, 0x12001000, 0x12011201, 0x10011012,
      0x10021110, 0x10001020, 0x10002001, 0x10002100, 0x10012000, 0x11002000, 0x11002101,
      0x10002010, 0x11012210, 0x11022011, 0x12002012, 0x11002121, 0x12012020, 0x10100000,
      0x10100200, 0x10110001, 0x10110201, 0x10120000, 0x12100000, 0x12100200, 0x10100110,
      0x11100012, 0x12120110, 0x12110021, 0x12111000, 0x12111002, 0x10101212, 0x10101021,
      0x11111120, 0x10102000, 0x10112001, 0x10112201, 0x11122100, 0x11102010, 0x10102220,
      0x10200100, 0x10210000, 0x11200000, 0x11220200, 0x10200010, 0x11210111, 0x10210220,
      0x11220020, 0x10201000, 0x10201101, 0x10211010, 0x10211012, 0x12201110, 0x11202002,
      0x20000000, 0x20000002, 0x20000202, 0x21000001, 0x22000002, 0x20000110, 0x20010210,
      0x21000010, 0x20010021, 0x20001001, 0x20001100, 0x20011000, 0x20011101, 0x21001000,
      0x21021000, 0x20001010, 0x21001112, 0x22011110, 0x20001221, 0x21001020, 0x21021020,
      0x20002002, 0x20002110, 0x20012021, 0x20100100, 0x20110000, 0x20120100, 0x21100000,
      0x22120001, 0x20110112, 0x22100010, 0x21100121, 0x20101000, 0x20121002, 0x21101100,
      0x21111011, 0x22102001, 0x20122010, 0x20200002, 0x21210000, 0x22200101, 0x20200211,
      0x20200020, 0x20211200, 0x21212000, 0x20202110,
  };
};

}  // namespace rf
