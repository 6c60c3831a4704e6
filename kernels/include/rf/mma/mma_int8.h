// Matrix instructions on signed bytes behind one interface: the products of a quant block of 16
// rows of weights with kColumns rows of activations, for one wave.
//
// A lane holds kLaneRows rows of the weights, lane_row(r), and one of the activations,
// activation_row(), and of the eight words (four bytes each) of a quant block those numbered
// lane_part() + kParts * j: kWords of them. Of the result it has, for each of its rows of weights,
// the activation rows lane_column(i). What is stored by column_place() has these side by side, as
// vector lane_column_group(). kGroups lanes hold the same rows of weights; group_lane(g) is the one
// of them whose lane_group() is g.
//
// Any order of the bytes of a quant block serves, as long as both operands have it; so the parts
// are those that the layout of weights.h makes cheap to load, not those that the tables name. Sums
// are exact: 32 products of signed bytes have fewer bits than the significand of a float32.
// multiply() gives them with kBias added.
#pragma once

#include "rf/platform.h"

namespace rf {

// What AMD's instructions have in common: 16 rows times 16 columns, of each of which a lane has
// one.
struct OneRow {
  static constexpr int kColumns = 16, kLaneRows = 1;
  static constexpr float kBias = 0.0f;

  static __device__ __forceinline__ int lane_row(int) { return lane_id() % 16; }
  static __device__ __forceinline__ int lane_group() { return lane_id() / 16; }
  static __device__ __forceinline__ int group_lane(int g) { return lane_id() % 16 + 16 * g; }
  static __device__ __forceinline__ int activation_row() { return lane_id() % 16; }
  static __device__ __forceinline__ int lane_column_group() { return lane_id() / 16; }
};

#if RF_NVIDIA || (RF_HOST && RF_WAVE == 32)

// mma.sync.m16n8k32 and k16 on s8 (PTX ISA, "Matrix Fragments for mma.m16n8k32"). With g = lane / 4
// and t = lane % 4:
//   A  a0: row g, k 4t..4t+3   a1: row g+8, same k   a2: row g, k 4t+16..   a3: row g+8, k 4t+16..
//   B  b0: column g, k 4t..    b1: column g, k 4t+16..
//   C  c0, c1: row g, columns 2t, 2t+1   c2, c3: row g+8
// k16 has a0, a1 and b0 alone.
struct MmaInt8 {
  static constexpr int kColumns = 8, kLaneRows = 2, kLaneColumns = 2;
  static constexpr int kParts = 4, kGroups = 4, kWords = 2;

  static __device__ __forceinline__ int lane_row(int r) { return lane_id() / 4 + 8 * r; }
  static __device__ __forceinline__ int lane_part() { return lane_id() % 4; }
  static __device__ __forceinline__ int lane_group() { return lane_id() % 4; }
  static __device__ __forceinline__ int group_lane(int g) { return (lane_id() & ~3) + g; }
  static __device__ __forceinline__ int activation_row() { return lane_id() / 4; }
  static __device__ __forceinline__ int lane_column(int i) { return lane_id() % 4 * 2 + i; }
  static __device__ __forceinline__ int lane_column_group() { return lane_id() % 4; }
  static __device__ __forceinline__ int column_place(int column) { return column; }
  static constexpr float kBias = 12582912.0f;
  static constexpr int kBiasBits = 0x4b400000;

  // All words, with `begin`, of both columns for each row, in the place of the bits of kBias: these
  // plus what the sums of that column shall have besides.
  static __device__ __forceinline__ void multiply_from(float (&sums)[kLaneRows][kLaneColumns],
                                                       Vec<uint32_t, 4> begin,
                                                       const uint32_t (&w)[kLaneRows][kWords],
                                                       const uint32_t (&x)[kWords]) {
    const int first[4] = {static_cast<int>(begin[0]), static_cast<int>(begin[1]),
                          static_cast<int>(begin[2]), static_cast<int>(begin[3])};
    int c[4];
    instruction<0, 2>(c, first, w, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i / 2][i % 2] = __builtin_bit_cast(float, c[i]);
  }

  // A byte that nothing writes, known to be one without more instructions.
  static __device__ __forceinline__ uint32_t load_byte(const uint8_t* from) {
#if RF_HOST
    return *from;
#else
    uint32_t byte;
    asm volatile("ld.global.nc.u8 %0, [%1];"
                 : "=r"(byte)
                 : "l"((const __attribute__((address_space(1))) uint8_t*)from));
    return byte;
#endif
  }

  // zero +- one of eight magnitudes, none above zero, by the nibbles of a word, whose highest bit
  // is the sign: those of the lower half of the word, then those of the upper, each in their order.
  static __device__ __forceinline__ Vec<uint32_t, 2> mirror_in_order(Vec<uint32_t, 2> magnitudes,
                                                                     int zero, uint32_t nibbles) {
#if RF_HOST
    const uint32_t low = mirror_select(magnitudes, zero, nibbles, false);
    const uint32_t high = mirror_select(magnitudes, zero, nibbles, true);
    return {byte_select(low, high, 0x05010400u), byte_select(low, high, 0x07030602u)};
#else
    // As mirror_select, which goes on to separate low nibbles and high ones.
    const uint32_t zeros = static_cast<uint32_t>(zero) * 0x01010101u;
    const uint32_t without_signs = nibbles & 0x77777777u;
    const auto four = [&](int shift) {
      const uint32_t positive = __nvvm_prmt(kept(magnitudes[0]), magnitudes[1], nibbles >> shift);
      const uint32_t below =
          __nvvm_prmt(kept(zeros - magnitudes[0]), zeros - magnitudes[1], without_signs >> shift);
      return positive * 2 + below;
    };
    return {four(0), four(16)};
#endif
  }

  // Words kFirst to kFirst + kCount - 1 alone.
  template <int kFirst, int kCount>
  static __device__ __forceinline__ void multiply(float (&sums)[kLaneRows][kLaneColumns],
                                                  const uint32_t (&w)[kLaneRows][kWords],
                                                  const uint32_t (&x)[kWords]) {
    // kBiasBits are those of 1.5 * 2^23. A sum that is added to them as an integer gives the
    // float32 of kBias + sum, which costs less than a conversion.
    constexpr int kFirstBits[4] = {kBiasBits, kBiasBits, kBiasBits, kBiasBits};
    int c[4];
    instruction<kFirst, kCount>(c, kFirstBits, w, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i / 2][i % 2] = __builtin_bit_cast(float, c[i]);
    }
  }

 private:
#if RF_HOST
  struct Operands {
    uint32_t w[kLaneRows][kWords], x[kWords];
    int c[4];
    int first, count;
  };
  __attribute__((disable_sanitizer_instrumentation)) static void lanes(void* const* operands,
                                                                       int count) {
    for (int l = 0; l < count; ++l) {
      auto* own = static_cast<Operands*>(operands[l]);
      for (int i = 0; i < 4; ++i) {
        for (int t = 0; t < 4; ++t) {
          const auto* row = static_cast<Operands*>(operands[l / 4 * 4 + t]);
          const auto* column = static_cast<Operands*>(operands[(l % 4 * 2 + i % 2) * 4 + t]);
          for (int j = own->first; j < own->first + own->count; ++j) {
            for (int shift = 0; shift < 32; shift += 8) {
              own->c[i] += static_cast<int8_t>(row->w[i / 2][j] >> shift) *
                           static_cast<int8_t>(column->x[j] >> shift);
            }
          }
        }
      }
    }
  }
  template <int kFirst, int kCount>
  static __forceinline__ void instruction(int (&c)[4], const int (&first)[4],
                                          const uint32_t (&w)[2][2], const uint32_t (&x)[2],
                                          const char* file = __builtin_FILE(),
                                          int line = __builtin_LINE()) {
    Operands own{{{w[0][0], w[0][1]}, {w[1][0], w[1][1]}},
                 {x[0], x[1]},
                 {first[0], first[1], first[2], first[3]},
                 kFirst,
                 kCount};
    rf_host_wave_compute(&own, lanes, file, line);
    for (int i = 0; i < 4; ++i) c[i] = own.c[i];
  }
#else
  template <int kFirst, int kCount>
  static __device__ __forceinline__ void instruction(int (&c)[4], const int (&first)[4],
                                                     const uint32_t (&w)[2][2],
                                                     const uint32_t (&x)[2]) {
    if constexpr (kCount == 2) {
      asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
          "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
          : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
          : "r"(w[0][0]), "r"(w[1][0]), "r"(w[0][1]), "r"(w[1][1]), "r"(x[0]), "r"(x[1]),
            "r"(first[0]), "r"(first[1]), "r"(first[2]), "r"(first[3]));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 "
          "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
          : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
          : "r"(w[0][kFirst]), "r"(w[1][kFirst]), "r"(x[kFirst]), "r"(first[0]), "r"(first[1]),
            "r"(first[2]), "r"(first[3]));
    }
  }
#endif
};

#elif RF_MFMA || (RF_HOST && RF_WAVE == 64)

// v_mfma_i32_16x16x16_i8 and, on CDNA3 and 4, 16x16x32 (CDNA3 ISA, 7.1.4). The activations are A:
//   A  lane l: row l % 16, k 4 (l / 16) .. + 3, or 8 of them
//   B  lane l: column l % 16, the same k
//   C  lane l, register i: row 4 (l / 16) + i, column l % 16
struct MmaInt8 : OneRow {
  static constexpr int kLaneColumns = 4;
  static constexpr int kParts = 4, kGroups = 4, kWords = 2;

  static __device__ __forceinline__ int lane_part() { return lane_id() / 16; }
  static __device__ __forceinline__ int lane_column(int i) { return lane_id() / 16 * 4 + i; }
  static __device__ __forceinline__ int column_place(int column) { return column; }

  template <int kFirst, int kCount>
  static __device__ __forceinline__ void multiply(float (&sums)[kLaneRows][kLaneColumns],
                                                  const uint32_t (&w)[kLaneRows][kWords],
                                                  const uint32_t (&x)[kWords]) {
    Vec<int, 4> c{};
#if RF_HOST || defined(__gfx908__) || defined(__gfx90a__)
#pragma unroll
    for (int j = kFirst; j < kFirst + kCount; ++j) c = instruction(x[j], w[0][j], c);
#else
    const auto both = [](uint32_t low, uint32_t high) {
      return static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | low);
    };
    constexpr bool kBoth = kCount == 2;
    c = __builtin_amdgcn_mfma_i32_16x16x32_i8(both(x[kFirst], kBoth ? x[1] : 0),
                                              both(w[0][kFirst], kBoth ? w[0][1] : 0), c, 0, 0, 0);
#endif
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[0][i] = static_cast<float>(c[i]);
  }

 private:
#if RF_HOST
  struct Operands {
    uint32_t a, b;
    Vec<int, 4> c;
  };
  __attribute__((disable_sanitizer_instrumentation)) static void lanes(void* const* operands,
                                                                       int count) {
    for (int l = 0; l < count; ++l) {
      auto* own = static_cast<Operands*>(operands[l]);
      for (int i = 0; i < 4; ++i) {
        for (int part = 0; part < 4; ++part) {
          const auto* row = static_cast<Operands*>(operands[l / 16 * 4 + i + part * 16]);
          const auto* column = static_cast<Operands*>(operands[l % 16 + part * 16]);
          for (int shift = 0; shift < 32; shift += 8) {
            own->c[i] +=
                static_cast<int8_t>(row->a >> shift) * static_cast<int8_t>(column->b >> shift);
          }
        }
      }
    }
  }
  static __forceinline__ Vec<int, 4> instruction(uint32_t a, uint32_t b, Vec<int, 4> c,
                                                 const char* file = __builtin_FILE(),
                                                 int line = __builtin_LINE()) {
    Operands own{a, b, c};
    rf_host_wave_compute(&own, lanes, file, line);
    return own.c;
  }
#elif defined(__gfx908__) || defined(__gfx90a__)
  static __device__ __forceinline__ Vec<int, 4> instruction(uint32_t a, uint32_t b, Vec<int, 4> c) {
    return __builtin_amdgcn_mfma_i32_16x16x16i8(static_cast<int>(a), static_cast<int>(b), c, 0, 0,
                                                0);
  }
#endif
};

#elif RF_GFX11

// v_wmma_i32_16x16x16_iu8, wave32 (RDNA3 ISA, 7.9). The activations are A:
//   A  lane l: row l % 16, all 16 k (lanes 16 to 31 repeat lanes 0 to 15)
//   B  lane l: column l % 16, all 16 k, repeated too
//   C  lane l, register i: row 2i + l / 16, column l % 16
struct MmaInt8 : OneRow {
  static constexpr int kLaneColumns = 8;
  static constexpr int kParts = 1, kGroups = 2, kWords = 8;

  static __device__ __forceinline__ int lane_part() { return 0; }
  static __device__ __forceinline__ int lane_column(int i) { return 2 * i + lane_id() / 16; }
  static __device__ __forceinline__ int column_place(int column) {
    return column / 16 * 16 + column % 2 * 8 + column % 16 / 2;
  }

  template <int kFirst, int kCount>
  static __device__ __forceinline__ void multiply(float (&sums)[kLaneRows][kLaneColumns],
                                                  const uint32_t (&w)[kLaneRows][kWords],
                                                  const uint32_t (&x)[kWords]) {
    const auto four = [](const uint32_t (&words)[kWords], int j) {
      return Vec<int, 4>{static_cast<int>(words[j]), static_cast<int>(words[j + 1]),
                         static_cast<int>(words[j + 2]), static_cast<int>(words[j + 3])};
    };
    Vec<int, 8> c{};
#pragma unroll
    for (int j = kFirst; j < kFirst + kCount; j += 4) {
      c = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, four(x, j), true, four(w[0], j), c,
                                                     false);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[0][i] = static_cast<float>(c[i]);
  }
};

#elif RF_GFX12

// v_wmma_i32_16x16x16_iu8, wave32 (RDNA4 ISA, 7.12). The activations are A:
//   A  lane l: row l % 16, eight k of lane l / 16
//   B  lane l: column l % 16, the same k
//   C  lane l, register i: row 8 (l / 16) + i, column l % 16
struct MmaInt8 : OneRow {
  static constexpr int kLaneColumns = 8;
  static constexpr int kParts = 2, kGroups = 2, kWords = 4;

  static __device__ __forceinline__ int lane_part() { return lane_id() / 16; }
  static __device__ __forceinline__ int lane_column(int i) { return lane_id() / 16 * 8 + i; }
  static __device__ __forceinline__ int column_place(int column) { return column; }

  template <int kFirst, int kCount>
  static __device__ __forceinline__ void multiply(float (&sums)[kLaneRows][kLaneColumns],
                                                  const uint32_t (&w)[kLaneRows][kWords],
                                                  const uint32_t (&x)[kWords]) {
    const auto two = [](const uint32_t (&words)[kWords], int j) {
      return Vec<int, 2>{static_cast<int>(words[j]), static_cast<int>(words[j + 1])};
    };
    Vec<int, 8> c{};
#pragma unroll
    for (int j = kFirst; j < kFirst + kCount; j += 2) {
      c = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, two(x, j), true, two(w[0], j), c,
                                                           false);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[0][i] = static_cast<float>(c[i]);
  }
};

#else

struct MmaInt8 {
  static constexpr int kColumns = 0;  // there are none
};

#endif

inline constexpr bool kHasMmaInt8 = MmaInt8::kColumns > 0;

}  // namespace rf
