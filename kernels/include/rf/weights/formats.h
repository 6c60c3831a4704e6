// What a format of weights offers to the kernels. Each has a header, formats/<name>.h, which a
// translation unit includes if it is compiled for that format: RF_FORMATS(X) is then
// X(name, Format, weights of a block, bytes of a block) of each.
#pragma once

#include "rf/weights/repack.h"

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

// table[nibble] for elements 4 k to 4 k + 3 of a quant block.
__device__ __forceinline__ uint32_t lookup(U4 table, U4 plane, int k) {
  return table_select(table, plane[k % 4], k >= 4);
}

__device__ constexpr uint32_t pack(int a, int b, int c, int d) {
  return (a & 0xff) | (b & 0xff) << 8 | (c & 0xff) << 16 | static_cast<uint32_t>(d & 0xff) << 24;
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

}  // namespace unpack

// What load() brings of a chunk: all of it ...
struct Whole {
  __device__ __forceinline__ U4 words(const U4& item) const { return item; }
  template <class T>
  __device__ __forceinline__ T pairs(T item) const {
    return item;
  }
  template <class T>
  __device__ __forceinline__ T bits(T item) const {
    return item;
  }
};

// ... or what a lane needs that takes every kCount-th word of four codes, from word `part` on:
// code() then gives word part + k for word k, a multiple of kCount.
template <int kCount>
struct Part {
  int part;  // below kCount, which is at most 4

  __device__ __forceinline__ U4 words(const U4& item) const {
    const auto* from = reinterpret_cast<const uint32_t*>(&item) + part;
    U4 result{};
#pragma unroll
    for (int k = 0; k < 4; k += kCount) result[k] = from[k];
    return result;
  }
  template <class T>
  __device__ __forceinline__ T pairs(T item) const {
    return item >> (2 * part);
  }
  template <class T>
  __device__ __forceinline__ T bits(T item) const {
    return item >> part;
  }
};

// A format has a Block, as files store it (the type layouts of GGUF), and
//   repack(block, planes, quant_blocks, q)  writes quant block q of a row of so many, which `block`
//                                           holds, to the planes of that row; parts of a plane that
//                                           belong to several quant blocks by the first of them
// For the computation it is the planes of a row; it names a Chunk of kQuantBlocks quant blocks (one
// if a block holds 32 weights, else two) and offers
//   of(planes, quant_blocks)  the row that `planes` stands at, of so many quant blocks
//   load(i, part)             chunk i of the row, as registers; those with a Codebook all of it
//   code(chunk, u, k)         elements 4 k to 4 k + 3 of its quant block u, one to a byte
//   scales(chunk, p, u)       for that quant block; p is the chunk's place in its super-block
// with weight = scale * (code - kZero) + offset. Codes are below 128, or signed bytes (kSigned).
// One that has a shorter way to code - kZero as halves offers code_halves(chunk, u, k), two words;
// one with a shorter way to kSignedStep times that as signed bytes, and no offset, signed_code().
// A format whose codes are looked up in LDS names a Codebook (codebook.h): kernels call prepare()
// before the first code().

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

  struct Block {
    static constexpr int kWeights = kQuantBlock;
    T values[kWeights];
  };

  Items<const U4> items;

  static __device__ __forceinline__ Plain of(Planes planes, int quant_blocks) {
    return {planes.take<U4>(quant_blocks * (kQuantBlock / kPerItem))};
  }

  static __device__ __forceinline__ void repack(const Block& block, PlanesOut planes,
                                                int quant_blocks, int quant_block) {
    constexpr int kItems = kQuantBlock / kPerItem;
    const auto items = planes.take<U4>(kItems * quant_blocks);
    for (int i = 0; i < kItems; ++i) {
      items[kItems * quant_block + i] = reinterpret_cast<const U4*>(block.values)[i];
    }
  }

  static __device__ __forceinline__ float value(U4 item, int i) {
    T values[kPerItem];
    __builtin_memcpy(values, &item, sizeof(item));
    return to_float(values[i]);
  }
};

// Any format but those.
template <class Format>
concept Quantised = requires { Format::kQuantBlocks; };

// Formats whose codes are the nibbles of four words and nothing else, low ones first.
template <class Format>
concept PlainNibbles =
    requires(const typename Format::Chunk& chunk) { Format::plain_nibbles(chunk, 0); };

// Brings what code() needs to LDS; all threads of the block call it.
template <class Format>
__device__ __forceinline__ void prepare() {
  if constexpr (requires { typename Format::Codebook; }) Format::Codebook::load();
}

}  // namespace rf
