// The formats of weight matrices: their planes, and how codes become weights.
#pragma once

#include "rf/weights.h"

namespace rf {

// What turns codes into weights: one value for each 32 / kCount elements of a quant block.
template <int kCount>
struct Scales {
  float scale[kCount];
  float offset[kCount];  // 0 unless the format has kOffset
};

namespace unpack {

// Elements 4 k to 4 k + 3 of a quant block, one to a byte. k is known after unrolling.
__device__ __forceinline__ uint32_t nibbles(U4 plane, int k) {
  return plane[k % 4] >> (k / 4 * 4) & 0x0f0f0f0fu;
}
// Their two bits, moved to bit `kShift` of each byte.
template <int kShift>
__device__ __forceinline__ uint32_t pairs(U2 plane, int k) {
  const int from = k % 4 * 2;
  const uint32_t word = plane[k / 4];
  const uint32_t shifted = from > kShift ? word >> (from - kShift) : word << (kShift - from);
  return shifted & (0x03030303u << kShift);
}
template <int kShift>
__device__ __forceinline__ uint32_t bits(uint32_t plane, int k) {
  return (k > kShift ? plane >> (k - kShift) : plane << (kShift - k)) & 0x01010101u << kShift;
}

// table[nibble] for four nibbles, one to a byte.
__device__ __forceinline__ uint32_t lookup(U4 table, uint32_t nibble) {
  const uint32_t index = nibble & 0x07070707u;
  const uint32_t low = byte_select(table[0], table[1], index);
  const uint32_t high = byte_select(table[2], table[3], index);
  return byte_select(low, high, 0x03020100u | (nibble & 0x08080808u) >> 1);
}

__device__ constexpr uint32_t pack(int a, int b, int c, int d) {
  return (a & 0xff) | (b & 0xff) << 8 | (c & 0xff) << 16 | static_cast<uint32_t>(d & 0xff) << 24;
}

// The values of IQ4_NL and IQ4_XS.
__device__ __forceinline__ U4 iq4_table() {
  return U4{pack(-127, -104, -83, -65), pack(-49, -35, -22, -10), pack(1, 13, 25, 38),
            pack(53, 69, 89, 113)};
}
// The values of E2M1, doubled (OCP Microscaling Formats 1.0).
__device__ __forceinline__ U4 mxfp4_table() {
  return U4{pack(0, 1, 2, 3), pack(4, 6, 8, 12), pack(0, -1, -2, -3), pack(-4, -6, -8, -12)};
}

__device__ __forceinline__ float byte_of(uint32_t word, int index) {
  return static_cast<float>(word >> (8 * index) & 0xffu);
}
__device__ __forceinline__ float signed_byte_of(uint32_t word, int index) {
  return static_cast<float>(static_cast<int8_t>(word >> (8 * index)));
}

__device__ __forceinline__ Half2 as_halves(uint32_t word) {
  return __builtin_bit_cast(Half2, word);
}

// Scale and minimum of quant blocks 2 p and 2 p + 1 of a Q4_K or Q5_K super-block, from its header
// {d, dmin, scales[12]}. Bytes of the 6-bit fields: scales[0..3] and [4..7] hold the low four
// scales and minima; [8..11] the low four bits of the others, whose high bits lie above the former.
__device__ __forceinline__ Scales<1> k_scales(U4 header, int p, int quant_block) {
  const bool low = p < 2;
  const int shift = (p & 1) * 16;
  const uint32_t own = low ? 0x3f3fu : 0x3030u;  // bits of words 1 and 2
  const uint32_t rest = low ? 0u : 0x0f0fu;      // bits of word 3
  const int own_shift = low ? shift : shift + 2;
  const uint32_t scale = (header[1] >> own_shift & own) | (header[3] >> shift & rest);
  const uint32_t minimum = (header[2] >> own_shift & own) | (header[3] >> (shift + 4) & rest);
  const Half2 d = as_halves(header[0]);
  return {{to_float(d[0]) * byte_of(scale, quant_block)},
          {-to_float(d[1]) * byte_of(minimum, quant_block)}};
}

}  // namespace unpack

// A format is the planes of a row; it names a Chunk of kQuantBlocks quant blocks and offers
//   of(planes, quant_blocks)  the row that `planes` stands at, of so many quant blocks
//   load(i)                   chunk i of the row, as registers
//   code(chunk, u, k)         elements 4 k to 4 k + 3 of its quant block u, one to a byte
//   scales(chunk, p, u)       for that quant block; p is the chunk's place in
//                             its super-block
// with weight = scale * (code - kZero) + offset. Codes are below 128, or signed bytes (kSigned).

struct Q8_0 {
  static constexpr int kQuantBlocks = 1, kScales = 1, kZero = 0;
  static constexpr bool kOffset = false, kSigned = true;
  Items<const U4> codes;  // two a quant block: elements 0 to 15, 16 to 31
  Items<const half> d;

  static __device__ __forceinline__ Q8_0 of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(2 * quant_blocks), planes.take<half>(quant_blocks)};
  }

  struct Chunk {
    U4 codes[2];
    half d;
  };
  __device__ __forceinline__ Chunk load(int i) const {
    return {{codes[2 * i], codes[2 * i + 1]}, d[i]};
  }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int, int k) {
    return chunk.codes[k / 4][k % 4];
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int) {
    return {{to_float(chunk.d)}, {0.0f}};
  }
};

struct Q4_0 {
  static constexpr int kQuantBlocks = 1, kScales = 1, kZero = 8;
  static constexpr bool kOffset = false, kSigned = false;
  Items<const U4> nibbles;
  Items<const half> d;

  static __device__ __forceinline__ Q4_0 of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks), planes.take<half>(quant_blocks)};
  }

  struct Chunk {
    U4 nibbles;
    half d;
  };
  __device__ __forceinline__ Chunk load(int i) const { return {nibbles[i], d[i]}; }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int, int k) {
    return unpack::nibbles(chunk.nibbles, k);
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int) {
    return {{to_float(chunk.d)}, {0.0f}};
  }
};

struct Q4_1 {
  static constexpr int kQuantBlocks = 1, kScales = 1, kZero = 0;
  static constexpr bool kOffset = true, kSigned = false;
  Items<const U4> nibbles;
  Items<const Half2> dm;

  static __device__ __forceinline__ Q4_1 of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks), planes.take<Half2>(quant_blocks)};
  }

  struct Chunk {
    U4 nibbles;
    Half2 dm;
  };
  __device__ __forceinline__ Chunk load(int i) const { return {nibbles[i], dm[i]}; }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int, int k) {
    return unpack::nibbles(chunk.nibbles, k);
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int) {
    return {{to_float(chunk.dm[0])}, {to_float(chunk.dm[1])}};
  }
};

struct Q5_0 {
  static constexpr int kQuantBlocks = 1, kScales = 1, kZero = 16;
  static constexpr bool kOffset = false, kSigned = false;
  Items<const U4> nibbles;
  Items<const uint32_t> bits;
  Items<const half> d;

  static __device__ __forceinline__ Q5_0 of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks), planes.take<uint32_t>(quant_blocks),
            planes.take<half>(quant_blocks)};
  }

  struct Chunk {
    U4 nibbles;
    uint32_t bits;
    half d;
  };
  __device__ __forceinline__ Chunk load(int i) const { return {nibbles[i], bits[i], d[i]}; }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int, int k) {
    return unpack::nibbles(chunk.nibbles, k) | unpack::bits<4>(chunk.bits, k);
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int) {
    return {{to_float(chunk.d)}, {0.0f}};
  }
};

struct Q5_1 {
  static constexpr int kQuantBlocks = 1, kScales = 1, kZero = 0;
  static constexpr bool kOffset = true, kSigned = false;
  Items<const U4> nibbles;
  Items<const uint32_t> bits;
  Items<const Half2> dm;

  static __device__ __forceinline__ Q5_1 of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks), planes.take<uint32_t>(quant_blocks),
            planes.take<Half2>(quant_blocks)};
  }

  struct Chunk {
    U4 nibbles;
    uint32_t bits;
    Half2 dm;
  };
  __device__ __forceinline__ Chunk load(int i) const { return {nibbles[i], bits[i], dm[i]}; }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int, int k) {
    return unpack::nibbles(chunk.nibbles, k) | unpack::bits<4>(chunk.bits, k);
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int) {
    return {{to_float(chunk.dm[0])}, {to_float(chunk.dm[1])}};
  }
};

struct IQ4_NL {
  static constexpr int kQuantBlocks = 1, kScales = 1, kZero = 0;
  static constexpr bool kOffset = false, kSigned = true;
  Items<const U4> nibbles;
  Items<const half> d;

  static __device__ __forceinline__ IQ4_NL of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks), planes.take<half>(quant_blocks)};
  }

  struct Chunk {
    U4 nibbles;
    half d;
  };
  __device__ __forceinline__ Chunk load(int i) const { return {nibbles[i], d[i]}; }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int, int k) {
    return unpack::lookup(unpack::iq4_table(), unpack::nibbles(chunk.nibbles, k));
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int) {
    return {{to_float(chunk.d)}, {0.0f}};
  }
};

struct MXFP4 {
  static constexpr int kQuantBlocks = 1, kScales = 1, kZero = 0;
  static constexpr bool kOffset = false, kSigned = true;
  Items<const U4> nibbles;
  Items<const uint8_t> exponent;

  static __device__ __forceinline__ MXFP4 of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks), planes.take<uint8_t>(quant_blocks)};
  }

  struct Chunk {
    U4 nibbles;
    uint8_t exponent;
  };
  __device__ __forceinline__ Chunk load(int i) const { return {nibbles[i], exponent[i]}; }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int, int k) {
    return unpack::lookup(unpack::mxfp4_table(), unpack::nibbles(chunk.nibbles, k));
  }
  // 2^(e - 128): half the E8M0 scale, as the table's values are doubled. Below 2^-126 the float32
  // is subnormal.
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int, int) {
    const uint32_t e = chunk.exponent;
    const uint32_t float_bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
    return {{__builtin_bit_cast(float, float_bits)}, {0.0f}};
  }
};

struct Q2_K {
  static constexpr int kQuantBlocks = 2, kScales = 2, kZero = 0;
  static constexpr bool kOffset = true, kSigned = false;
  Items<const U4> pairs;            // of two quant blocks
  Items<const uint32_t> scale_min;  // of two quant blocks: scales[16] of the super-block
  Items<const Half2> d;             // of eight quant blocks: d, dmin

  static __device__ __forceinline__ Q2_K of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks / 2), planes.take<uint32_t>(quant_blocks / 2),
            planes.take<Half2>(quant_blocks / 8)};
  }

  struct Chunk {
    U4 pairs;
    uint32_t scale_min;
    Half2 d;
  };
  __device__ __forceinline__ Chunk load(int i) const { return {pairs[i], scale_min[i], d[i / 4]}; }
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

struct Q3_K {
  static constexpr int kQuantBlocks = 2, kScales = 2, kZero = 4;
  static constexpr bool kOffset = false, kSigned = false;
  struct PackedScales {
    uint32_t word[3];  // scales[12] of the super-block
  };
  Items<const U4> pairs;             // of two quant blocks
  Items<const U2> bits;              // of two quant blocks
  Items<const PackedScales> packed;  // of eight quant blocks
  Items<const half> d;               // of eight quant blocks

  static __device__ __forceinline__ Q3_K of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks / 2), planes.take<U2>(quant_blocks / 2),
            planes.take<PackedScales>(quant_blocks / 8), planes.take<half>(quant_blocks / 8)};
  }

  struct Chunk {
    U4 pairs;
    U2 bits;
    PackedScales packed;
    half d;
  };
  __device__ __forceinline__ Chunk load(int i) const {
    return {pairs[i], bits[i], packed[i / 4], d[i / 4]};
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

struct Q4_K {
  static constexpr int kQuantBlocks = 2, kScales = 1, kZero = 0;
  static constexpr bool kOffset = true, kSigned = false;
  Items<const U4> nibbles;
  Items<const U4> header;  // of eight quant blocks: d, dmin, scales[12] of the super-block

  static __device__ __forceinline__ Q4_K of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks), planes.take<U4>(quant_blocks / 8)};
  }

  struct Chunk {
    U4 nibbles[2];
    U4 header;
  };
  __device__ __forceinline__ Chunk load(int i) const {
    return {{nibbles[2 * i], nibbles[2 * i + 1]}, header[i / 4]};
  }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int u, int k) {
    return unpack::nibbles(chunk.nibbles[u], k);
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int p, int u) {
    return unpack::k_scales(chunk.header, p, u);
  }
};

struct Q5_K {
  static constexpr int kQuantBlocks = 2, kScales = 1, kZero = 0;
  static constexpr bool kOffset = true, kSigned = false;
  Items<const U4> nibbles;
  Items<const U2> bits;    // of two quant blocks
  Items<const U4> header;  // as in Q4_K

  static __device__ __forceinline__ Q5_K of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks), planes.take<U2>(quant_blocks / 2),
            planes.take<U4>(quant_blocks / 8)};
  }

  struct Chunk {
    U4 nibbles[2];
    U2 bits;
    U4 header;
  };
  __device__ __forceinline__ Chunk load(int i) const {
    return {{nibbles[2 * i], nibbles[2 * i + 1]}, bits[i], header[i / 4]};
  }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int u, int k) {
    return unpack::nibbles(chunk.nibbles[u], k) | unpack::bits<4>(chunk.bits[u], k);
  }
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int p, int u) {
    return unpack::k_scales(chunk.header, p, u);
  }
};

struct Q6_K {
  static constexpr int kQuantBlocks = 2, kScales = 2, kZero = 32;
  static constexpr bool kOffset = false, kSigned = false;
  Items<const U4> nibbles;
  Items<const U4> pairs;        // of two quant blocks: the high bits
  Items<const uint32_t> scale;  // of two quant blocks: four signed bytes
  Items<const half> d;          // of eight quant blocks

  static __device__ __forceinline__ Q6_K of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks), planes.take<U4>(quant_blocks / 2),
            planes.take<uint32_t>(quant_blocks / 2), planes.take<half>(quant_blocks / 8)};
  }

  struct Chunk {
    U4 nibbles[2];
    U4 pairs;
    uint32_t scale;
    half d;
  };
  __device__ __forceinline__ Chunk load(int i) const {
    return {{nibbles[2 * i], nibbles[2 * i + 1]}, pairs[i], scale[i], d[i / 4]};
  }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int u, int k) {
    return unpack::nibbles(chunk.nibbles[u], k) |
           unpack::pairs<4>(U2{chunk.pairs[2 * u], chunk.pairs[2 * u + 1]}, k);
  }
  static __device__ __forceinline__ Scales<2> scales(const Chunk& chunk, int, int u) {
    const float d = to_float(chunk.d);
    return {{d * unpack::signed_byte_of(chunk.scale, 2 * u),
             d * unpack::signed_byte_of(chunk.scale, 2 * u + 1)},
            {0.0f, 0.0f}};
  }
};

struct IQ4_XS {
  static constexpr int kQuantBlocks = 2, kScales = 1, kZero = 0;
  static constexpr bool kOffset = false, kSigned = true;
  Items<const U4> nibbles;
  Items<const U2> header;  // of eight quant blocks: d, scales_h, scales_l[4] of the super-block

  static __device__ __forceinline__ IQ4_XS of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks), planes.take<U2>(quant_blocks / 8)};
  }

  struct Chunk {
    U4 nibbles[2];
    U2 header;
  };
  __device__ __forceinline__ Chunk load(int i) const {
    return {{nibbles[2 * i], nibbles[2 * i + 1]}, header[i / 4]};
  }
  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int u, int k) {
    return unpack::lookup(unpack::iq4_table(), unpack::nibbles(chunk.nibbles[u], k));
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

// Elements 4 k to 4 k + 3 of quant block u of a chunk, as weights.
template <class Format>
__device__ __forceinline__ Vec<float, 4> four_weights(const typename Format::Chunk& chunk,
                                                      const Scales<Format::kScales>& scales, int u,
                                                      int k) {
  const uint32_t codes = Format::code(chunk, u, k);
  const int part = k * Format::kScales / 8;
  Vec<float, 4> weights;
  for (int i = 0; i < 4; ++i) {
    const float code = Format::kSigned ? unpack::signed_byte_of(codes, i)
                                       : unpack::byte_of(codes, i) - Format::kZero;
    weights[i] = scales.scale[part] * code + scales.offset[part];
  }
  return weights;
}

// Weights that are not quantised: plain values, 16 bytes an item.

template <class T>
struct Plain {
  static constexpr int kPerItem = 16 / sizeof(T);
  Items<const U4> items;

  static __device__ __forceinline__ Plain of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks * (kQuantBlock / kPerItem))};
  }

  static __device__ __forceinline__ float value(U4 item, int i) {
    T values[kPerItem];
    __builtin_memcpy(values, &item, sizeof(item));
    return to_float(values[i]);
  }
};
using F32 = Plain<float>;
using F16 = Plain<half>;
using BF16 = Plain<bf16>;

}  // namespace rf
