// Weight matrices as the linear kernels read them, and how each type is unpacked.
//
// A matrix is [rows, K] (rows: outputs of the layer), K a multiple of 32, rows padded with zeros
// to a multiple of 32. It is stored as planes, one for each part of a quantised block (codes, high
// bits, scales ...), and in a plane the items of eight rows lie side by side:
//
//   plane[row / 8][item][row % 8]     an item is 1 to 16 bytes: T in the tables below
//
// Consecutive lanes read consecutive items, so every load of a wave is one contiguous piece of
// memory, aligned, and up to 16 bytes a lane, whatever the block size in the file; eight lanes
// share the activation they multiply with. The planes together have the size of the file's blocks.
//
// A unit is 32 weights of a row. Codes are packed alike for all types, byte b of word w holding
//   nibbles  U4  per unit   low nibble: element 4 w + b, high nibble: element 16 + 4 w + b
//   pairs    U2  per unit   bits 2 f, 2 f + 1: element 16 w + 4 f + b
//   bits     u32 per unit   bit f: element 4 f + b
// and planes follow in the order of the members of each format below. A matrix for a gated layer
// holds gate and up: stored row 32 i + j is gate row 16 i + j, row 32 i + 16 + j is up row 16 i + j.
#pragma once

#include "rf/platform.h"

namespace rf {

inline constexpr int kUnit = 32;       // weights
inline constexpr int kGroupRows = 8;   // rows whose items are interleaved
inline constexpr int kRowAlign = 32;   // stored rows are a multiple of this
inline constexpr int kGateRows = 16;   // rows of gate, then as many of up

using U2 = Vec<uint32_t, 2>;
using U4 = Vec<uint32_t, 4>;
using Half2 = Vec<half, 2>;

// The items of one row in one plane.
template <class T>
struct Items {
  const T* first;
  __device__ __forceinline__ T operator[](int index) const {
    return first[static_cast<int64_t>(index) * kGroupRows];
  }
};

// Walks over the planes of a matrix in their order, for one row of it.
class Planes {
 public:
  __device__ __forceinline__ Planes(const uint8_t* data, int64_t stored_rows, int64_t row)
      : next_(data), stored_rows_(stored_rows), row_(row) {}

  template <class T>
  __device__ __forceinline__ Items<T> take(int64_t items_a_row) {
    const int64_t first =
        row_ / kGroupRows * (items_a_row * kGroupRows) + row_ % kGroupRows;
    const Items<T> items{reinterpret_cast<const T*>(next_) + first};
    next_ += stored_rows_ * items_a_row * static_cast<int64_t>(sizeof(T));
    return items;
  }

 private:
  const uint8_t* next_;
  int64_t stored_rows_;
  int64_t row_;
};

// What turns codes into weights: one value for each 32 / kCount elements of a unit.
template <int kCount>
struct Scales {
  float scale[kCount];
  float offset[kCount];  // 0 unless the format has kOffset
};

namespace unpack {

// Elements 4 k to 4 k + 3 of a unit, one to a byte. k is known after unrolling.
__device__ __forceinline__ uint32_t nibbles(U4 plane, int k) {
  return plane[k % 4] >> (k / 4 * 4) & 0x0f0f0f0fu;
}
// Their two bits, moved to bit `kShift` of each byte.
template <int kShift>
__device__ __forceinline__ uint32_t pairs(U2 plane, int k) {
  const int from = k % 4 * 2;
  const uint32_t word = plane[k / 4];
  return (from > kShift ? word >> (from - kShift) : word << (kShift - from)) &
         0x03030303u << kShift;
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
  return (a & 0xff) | (b & 0xff) << 8 | (c & 0xff) << 16 |
         static_cast<uint32_t>(d & 0xff) << 24;
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

// Scale and minimum of units 2 p and 2 p + 1 of a Q4_K or Q5_K super-block, from its header
// {d, dmin, scales[12]}. Bytes of the 6-bit fields: scales[0..3] and [4..7] hold the low four
// scales and minima; [8..11] the low four bits of the others, whose high bits lie above the former.
struct PairHeader {
  uint32_t scale;  // two bytes
  uint32_t minimum;
};
__device__ __forceinline__ PairHeader pair_header(U4 header, int p) {
  const int shift = (p & 1) * 16;
  const uint32_t a = header[1] >> shift;
  const uint32_t b = header[2] >> shift;
  const uint32_t c = header[3] >> shift;
  const bool low = p < 2;
  return PairHeader{
      low ? a & 0x3f3fu : (c & 0x0f0fu) | (a >> 2 & 0x3030u),
      low ? b & 0x3f3fu : (c >> 4 & 0x0f0fu) | (b >> 2 & 0x3030u),
  };
}
__device__ __forceinline__ Scales<1> k_scales(U4 header, int p, int unit) {
  const PairHeader pair = pair_header(header, p);
  const Half2 d = as_halves(header[0]);
  return {{to_float(d[0]) * byte_of(pair.scale, unit)},
          {-to_float(d[1]) * byte_of(pair.minimum, unit)}};
}

}  // namespace unpack

// The formats. Each names a Chunk of kUnits units and offers
//   load(i)             chunk i of the row, as registers
//   code(chunk, u, k)   elements 4 k to 4 k + 3 of its unit u, one to a byte
//   scales(chunk, i, u) for that unit
// with weight = scale * (code - kZero) + offset. Codes are below 128, or signed bytes (kSigned).

struct Q8_0 {
  static constexpr int kUnits = 1, kScales = 1, kZero = 0;
  static constexpr bool kOffset = false, kSigned = true;
  Items<U4> codes;  // two a unit: elements 0 to 15, 16 to 31
  Items<half> d;

  __device__ __forceinline__ Q8_0(Planes planes, int units)
      : codes(planes.take<U4>(2 * units)), d(planes.take<half>(units)) {}

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
  static constexpr int kUnits = 1, kScales = 1, kZero = 8;
  static constexpr bool kOffset = false, kSigned = false;
  Items<U4> nibbles;
  Items<half> d;

  __device__ __forceinline__ Q4_0(Planes planes, int units)
      : nibbles(planes.take<U4>(units)), d(planes.take<half>(units)) {}

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
  static constexpr int kUnits = 1, kScales = 1, kZero = 0;
  static constexpr bool kOffset = true, kSigned = false;
  Items<U4> nibbles;
  Items<Half2> dm;

  __device__ __forceinline__ Q4_1(Planes planes, int units)
      : nibbles(planes.take<U4>(units)), dm(planes.take<Half2>(units)) {}

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
  static constexpr int kUnits = 1, kScales = 1, kZero = 16;
  static constexpr bool kOffset = false, kSigned = false;
  Items<U4> nibbles;
  Items<uint32_t> bits;
  Items<half> d;

  __device__ __forceinline__ Q5_0(Planes planes, int units)
      : nibbles(planes.take<U4>(units)),
        bits(planes.take<uint32_t>(units)),
        d(planes.take<half>(units)) {}

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
  static constexpr int kUnits = 1, kScales = 1, kZero = 0;
  static constexpr bool kOffset = true, kSigned = false;
  Items<U4> nibbles;
  Items<uint32_t> bits;
  Items<Half2> dm;

  __device__ __forceinline__ Q5_1(Planes planes, int units)
      : nibbles(planes.take<U4>(units)),
        bits(planes.take<uint32_t>(units)),
        dm(planes.take<Half2>(units)) {}

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
  static constexpr int kUnits = 1, kScales = 1, kZero = 0;
  static constexpr bool kOffset = false, kSigned = true;
  Items<U4> nibbles;
  Items<half> d;

  __device__ __forceinline__ IQ4_NL(Planes planes, int units)
      : nibbles(planes.take<U4>(units)), d(planes.take<half>(units)) {}

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
  static constexpr int kUnits = 1, kScales = 1, kZero = 0;
  static constexpr bool kOffset = false, kSigned = true;
  Items<U4> nibbles;
  Items<uint8_t> exponent;

  __device__ __forceinline__ MXFP4(Planes planes, int units)
      : nibbles(planes.take<U4>(units)), exponent(planes.take<uint8_t>(units)) {}

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
  static constexpr int kUnits = 2, kScales = 2, kZero = 0;
  static constexpr bool kOffset = true, kSigned = false;
  Items<U4> pairs;            // of two units
  Items<uint32_t> scale_min;  // of two units: scales[16] of the file's block
  Items<Half2> d;             // of eight units: d, dmin

  __device__ __forceinline__ Q2_K(Planes planes, int units)
      : pairs(planes.take<U4>(units / 2)),
        scale_min(planes.take<uint32_t>(units / 2)),
        d(planes.take<Half2>(units / 8)) {}

  struct Chunk {
    U4 pairs;
    uint32_t scale_min;
    Half2 d;
  };
  __device__ __forceinline__ Chunk load(int i) const {
    return {pairs[i], scale_min[i], d[i / 4]};
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

struct Q3_K {
  static constexpr int kUnits = 2, kScales = 2, kZero = 4;
  static constexpr bool kOffset = false, kSigned = false;
  struct PackedScales {
    uint32_t word[3];  // scales[12] of the file's block
  };
  Items<U4> pairs;  // of two units
  Items<U2> bits;   // of two units
  Items<PackedScales> packed;  // of eight units
  Items<half> d;               // of eight units

  __device__ __forceinline__ Q3_K(Planes planes, int units)
      : pairs(planes.take<U4>(units / 2)),
        bits(planes.take<U2>(units / 2)),
        packed(planes.take<PackedScales>(units / 8)),
        d(planes.take<half>(units / 8)) {}

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
  static __device__ __forceinline__ Scales<2> scales(const Chunk& chunk, int i, int u) {
    const int p = i % 4;
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
  static constexpr int kUnits = 2, kScales = 1, kZero = 0;
  static constexpr bool kOffset = true, kSigned = false;
  Items<U4> nibbles;
  Items<U4> header;  // of eight units: d, dmin, scales[12] of the file's block

  __device__ __forceinline__ Q4_K(Planes planes, int units)
      : nibbles(planes.take<U4>(units)), header(planes.take<U4>(units / 8)) {}

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
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int i, int u) {
    return unpack::k_scales(chunk.header, i % 4, u);
  }
};

struct Q5_K {
  static constexpr int kUnits = 2, kScales = 1, kZero = 0;
  static constexpr bool kOffset = true, kSigned = false;
  Items<U4> nibbles;
  Items<U2> bits;    // of two units
  Items<U4> header;  // as in Q4_K

  __device__ __forceinline__ Q5_K(Planes planes, int units)
      : nibbles(planes.take<U4>(units)),
        bits(planes.take<U2>(units / 2)),
        header(planes.take<U4>(units / 8)) {}

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
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int i, int u) {
    return unpack::k_scales(chunk.header, i % 4, u);
  }
};

struct Q6_K {
  static constexpr int kUnits = 2, kScales = 2, kZero = 32;
  static constexpr bool kOffset = false, kSigned = false;
  Items<U4> nibbles;
  Items<U4> pairs;        // of two units: the high bits
  Items<uint32_t> scale;  // of two units: four signed bytes
  Items<half> d;          // of eight units

  __device__ __forceinline__ Q6_K(Planes planes, int units)
      : nibbles(planes.take<U4>(units)),
        pairs(planes.take<U4>(units / 2)),
        scale(planes.take<uint32_t>(units / 2)),
        d(planes.take<half>(units / 8)) {}

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
  static constexpr int kUnits = 2, kScales = 1, kZero = 0;
  static constexpr bool kOffset = false, kSigned = true;
  Items<U4> nibbles;
  Items<U2> header;  // of eight units: d, scales_h, scales_l[4] of the file's block

  __device__ __forceinline__ IQ4_XS(Planes planes, int units)
      : nibbles(planes.take<U4>(units)), header(planes.take<U2>(units / 8)) {}

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
  // Unit j of a super-block: low four bits are nibble j of scales_l, high two bits 2 j of scales_h.
  static __device__ __forceinline__ Scales<1> scales(const Chunk& chunk, int i, int u) {
    const int j = i % 4 * 2 + u;
    const uint32_t low = chunk.header[1] >> (4 * j) & 15u;
    const uint32_t high = chunk.header[0] >> (16 + 2 * j) & 3u;
    const float d = to_float(unpack::as_halves(chunk.header[0])[0]);
    return {{d * (static_cast<float>(low | high << 4) - 32.0f)}, {0.0f}};
  }
};

// Weights that are not quantised: plain values, 16 bytes an item.

template <class T>
struct Plain {
  using Value = T;
  static constexpr int kPerItem = 16 / sizeof(T);
  Items<U4> items;

  __device__ __forceinline__ Plain(Planes planes, int units)
      : items(planes.take<U4>(units * (kUnit / kPerItem))) {}

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
