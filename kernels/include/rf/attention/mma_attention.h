// Matrix fragments of prefill attention, for each kind of matrix instruction.
//
// Both products are computed transposed, with queries as columns:
//
//   scores^T [keys x queries] = K [keys x dims]  * Q^T [dims x queries]
//   output^T [dims x queries] = V^T [dims x keys] * P^T [keys x queries]
//
// A column of the result, one query, then lies in few lanes (one register of each holds the same
// query all along), so the softmax needs few exchanges and rescaling the output needs none; and
// a tile of scores^T becomes the right-hand side P^T with no exchange on gfx9 and gfx12.
//
// mma.h serves products of two operands that both come from LDS; this header is for these two.
// All tiles are 16 x 16 x 16: left A [16 x 16] comes from LDS, right B [16 x 16] and the float32
// result C [16 x 16] lie in registers. How the lanes of a wave hold them, with "row of A", "k" and
// "column of B" as in C[row][column] = sum over k of A[row][k] * B[k][column]:
//
// | matrix unit | A: a lane has           | B: a lane has              | C: value i of a lane |
// |-------------|-------------------------|----------------------------|----------------------|
// | gfx9 MFMA   | row l%16, k 4(l/16)..+3 | column l%16, k 4(l/16)..+3 | (4(l/16) + i, l%16)  |
// | gfx11 WMMA  | row l%16, k 0..15       | column l%16, k 0..15       | (2i + l/16, l%16)    |
// | gfx12 WMMA  | row l%16, k 8(l/16)..+7 | column l%16, k 8(l/16)..+7 | (8(l/16) + i, l%16)  |
// | mma.m16n8k16, two of them: see there                                                        |
// | portable    | (read from LDS)         | column l%16, k 0..15       | (n(l/16) + i, l%16)  |
//
// l is the lane, n = 256 / kWave the number of values. On AMD the order of k within an instruction
// does not matter as long as it is the same in A and B (on gfx12 the hardware's own is another than
// the table's); what the second product rests on is that C's rows are B's k.
//
// Sources: AMD Instinct MI300 ISA, "Dense Matrix Multiplication Layout"; RDNA3 and RDNA4 ISA, "Wave
// Matrix Multiply Accumulate"; PTX ISA, "Matrix Fragments for mma.m16n8k16".
#pragma once

#include "rf/mma/mma.h"

namespace rf {

inline constexpr int kTile = 16;
inline constexpr int kTileValues = kTile * kTile / kWave;  // of C in each lane

using TileValues = float[kTileValues];

// A matrix of halves in LDS, seen as chunks of eight. Rows are padded by one chunk, so that the
// same chunk of eight rows lies in 32 different banks.
template <int kColumns>
struct RowTile {
  static constexpr int kStride = kColumns + 8;
  half* data;

  __device__ __forceinline__ half* chunk(int row, int index) const {
    return data + row * kStride + index * 8;
  }
};

// V^T [dims x keys], written as it is transposed: a lane writes four keys of eight rows. The order
// of a row's chunks depends on row / 8, so that lanes that write rows 8 apart do not collide.
template <int kKeys>
struct TransposedTile {
  static constexpr int kStride = kKeys + 8;
  half* data;

  __device__ __forceinline__ half* chunk(int row, int index) const {
    return data + row * kStride + (index ^ (row / 8 % (kKeys / 8))) * 8;
  }
};

namespace mma {

// What matrix units with one column per lane have in common.
struct OneColumn {
  static constexpr bool kTransposedV = true;  // V^T has to lie in LDS as such
  static constexpr int kLaneColumns = 1;      // columns of C in a lane
  static constexpr int kQueryRows = 1;        // columns of B in a lane
  static constexpr int kReloadUnroll = 2;     // steps of the head whose queries are loaded ahead

  static __device__ __forceinline__ constexpr int lane_column(int) { return 0; }
  static __device__ __forceinline__ int column(int) { return lane_id() % kTile; }
  static __device__ __forceinline__ int query_row(int) { return lane_id() % kTile; }

  // Which key stands at this place of the keys that the second product sums over.
  static __device__ __forceinline__ int key_at(int place) { return place; }

  // Combines a column's values over the lanes that hold some of them.
  template <class Combine>
  static __device__ __forceinline__ float over_column(float value, Combine combine) {
    value = combine(value, shfl_xor<16>(value));
    if constexpr (kWave == 64) value = combine(value, shfl_xor<kWave / 2>(value));
    return value;
  }
};

#if RF_MFMA || (RF_HOST && RF_WAVE == 64)

struct MatrixUnit : OneColumn {
  static constexpr int kFullTileRegisters = 90;
  static constexpr int kLargeHeadKeys = 32;
  static constexpr int kKeptQueryRegisters = 200;
  static constexpr int kLargestHeadColumns = 256;
  using A = Vec<half, 4>;
  using B = Vec<half, 4>;

  static __device__ __forceinline__ int row(int i) { return 4 * (lane_id() / kTile) + i; }

  template <class Tile>
  static __device__ __forceinline__ A load(const Tile& tile, int first_row, int first_chunk) {
    const int part = lane_id() / kTile;
    const half* chunk = tile.chunk(first_row + lane_id() % kTile, first_chunk + part / 2);
    return *reinterpret_cast<const A*>(chunk + part % 2 * 4);
  }

  static __device__ __forceinline__ B load_query(const half* const (&rows)[1], int k) {
    return *reinterpret_cast<const B*>(rows[0] + k + lane_id() / kTile * 4);
  }

  static __device__ __forceinline__ B pack(const TileValues& c) {
    return {to_half(c[0]), to_half(c[1]), to_half(c[2]), to_half(c[3])};
  }

  static __device__ __forceinline__ void multiply(TileValues& c, A a, B b) {
    Vec<float, 4> sums{c[0], c[1], c[2], c[3]};
    sums = mfma_16x16x16(a, b, sums);
    for (int i = 0; i < 4; ++i) c[i] = sums[i];
  }
};

#elif RF_GFX11

struct MatrixUnit : OneColumn {
  static constexpr int kFullTileRegisters = 80;
  static constexpr int kLargeHeadKeys = 32;
  static constexpr int kKeptQueryRegisters = 130;
  static constexpr int kLargestHeadColumns = 256;
  using A = Vec<half, 16>;
  using B = Vec<half, 16>;

  static __device__ __forceinline__ int row(int i) { return 2 * i + lane_id() / kTile; }

  // A lane of C has the even or the odd keys; P^T takes them as all even, then all odd ones.
  static __device__ __forceinline__ int key_at(int place) {
    return place / kTile * kTile + place % 8 * 2 + place / 8 % 2;
  }

  static __device__ __forceinline__ A join(Vec<half, 8> low, Vec<half, 8> high) {
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }

  template <class Tile>
  static __device__ __forceinline__ A load(const Tile& tile, int first_row, int first_chunk) {
    const int row = first_row + lane_id() % kTile;
    return join(load16(tile.chunk(row, first_chunk)), load16(tile.chunk(row, first_chunk + 1)));
  }

  static __device__ __forceinline__ B load_query(const half* const (&rows)[1], int k) {
    return join(load16(rows[0] + k), load16(rows[0] + k + 8));
  }

  static __device__ __forceinline__ B pack(const TileValues& c) {
    Vec<half, 8> own;
    for (int i = 0; i < 8; ++i) own[i] = to_half(c[i]);
    const Vec<half, 8> other = shfl_xor<16>(own);
    const bool has_even = lane_id() < kTile;
    return join(has_even ? own : other, has_even ? other : own);
  }

  static __device__ __forceinline__ void multiply(TileValues& c, A a, B b) {
    Vec<float, 8> sums;
    for (int i = 0; i < 8; ++i) sums[i] = c[i];
    sums = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, sums);
    for (int i = 0; i < 8; ++i) c[i] = sums[i];
  }
};

#elif RF_GFX12

struct MatrixUnit : OneColumn {
  static constexpr int kFullTileRegisters = 100;
  static constexpr int kLargeHeadKeys = 32;
  static constexpr int kKeptQueryRegisters = 100;
  static constexpr int kLargestHeadColumns = 256;
  using A = Vec<half, 8>;
  using B = Vec<half, 8>;

  static __device__ __forceinline__ int row(int i) { return 8 * (lane_id() / kTile) + i; }

  template <class Tile>
  static __device__ __forceinline__ A load(const Tile& tile, int first_row, int first_chunk) {
    return load16(tile.chunk(first_row + lane_id() % kTile, first_chunk + lane_id() / kTile));
  }

  static __device__ __forceinline__ B load_query(const half* const (&rows)[1], int k) {
    return load16(rows[0] + k + lane_id() / kTile * 8);
  }

  static __device__ __forceinline__ B pack(const TileValues& c) {
    B b;
    for (int i = 0; i < 8; ++i) b[i] = to_half(c[i]);
    return b;
  }

  static __device__ __forceinline__ void multiply(TileValues& c, A a, B b) {
    Vec<float, 8> sums;
    for (int i = 0; i < 8; ++i) sums[i] = c[i];
    sums = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, sums);
    for (int i = 0; i < 8; ++i) c[i] = sums[i];
  }
};

#elif RF_NVIDIA

// Two mma.m16n8k16 side by side, n = 0 and 1, each for eight columns. With g = l / 4, t = l % 4:
//   A, four pairs of halves: (row g, k 2t..), (g + 8, 2t..), (g, 2t + 8..), (g + 8, 2t + 8..)
//   B, two pairs for each n: (k 2t.., column 8n + g), (k 2t + 8.., column 8n + g)
//   C, four values of each n: (g, 8n + 2t), (g, 8n + 2t + 1), (g + 8, 8n + 2t), (g + 8, ...)
struct MatrixUnit {
  struct A {
    uint32_t word[4];
  };
  struct B {
    uint32_t word[2][2];
  };
  static constexpr int kFullTileRegisters = 100;
  static constexpr int kLargeHeadKeys = 32;
  static constexpr int kKeptQueryRegisters = 100;
  static constexpr int kLargestHeadColumns = 256;
  static constexpr bool kTransposedV = false;  // ldmatrix transposes
  static constexpr int kLaneColumns = 4;
  static constexpr int kQueryRows = 2;
  static constexpr int kReloadUnroll = 2;

  static __device__ __forceinline__ constexpr int lane_column(int i) { return i / 4 * 2 + i % 2; }
  static __device__ __forceinline__ int column(int index) {
    return index / 2 * 8 + lane_id() % 4 * 2 + index % 2;
  }
  static __device__ __forceinline__ int row(int i) { return lane_id() / 4 + i / 2 % 2 * 8; }
  static __device__ __forceinline__ int query_row(int n) { return n * 8 + lane_id() / 4; }
  static __device__ __forceinline__ int key_at(int place) { return place; }

  template <class Combine>
  static __device__ __forceinline__ float over_column(float value, Combine combine) {
    value = combine(value, shfl_xor<4>(value));
    value = combine(value, shfl_xor<8>(value));
    return combine(value, shfl_xor<16>(value));
  }

  static __device__ __forceinline__ uint32_t lds_address(const void* pointer) {
    using LdsPointer = const __attribute__((address_space(3))) void*;
    return static_cast<uint32_t>(reinterpret_cast<uint64_t>((LdsPointer)pointer));
  }

  // ldmatrix: lanes 0-7, 8-15, ... give the addresses of the rows of four 8 x 8 matrices.
  template <class Tile>
  static __device__ __forceinline__ A load(const Tile& tile, int first_row, int first_chunk) {
    const int row = first_row + lane_id() % kTile;
    const uint32_t address = lds_address(tile.chunk(row, first_chunk + lane_id() / kTile));
    A a;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a.word[0]), "=r"(a.word[1]), "=r"(a.word[2]), "=r"(a.word[3])
                 : "r"(address)
                 : "memory");
    return a;
  }

  // The tile holds V, keys as rows; the result is a part of V^T.
  template <class Tile>
  static __device__ __forceinline__ A load_transposed(const Tile& tile, int first_row,
                                                      int first_chunk) {
    const int matrix = lane_id() / 8;
    const int row = first_row + lane_id() % 8 + matrix / 2 * 8;
    const uint32_t address = lds_address(tile.chunk(row, first_chunk + matrix % 2));
    A a;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a.word[0]), "=r"(a.word[1]), "=r"(a.word[2]), "=r"(a.word[3])
                 : "r"(address)
                 : "memory");
    return a;
  }

  static __device__ __forceinline__ B load_query(const half* const (&rows)[2], int k) {
    const int own = k + lane_id() % 4 * 2;
    B b;
    for (int n = 0; n < 2; ++n) {
      b.word[n][0] = *reinterpret_cast<const uint32_t*>(rows[n] + own);
      b.word[n][1] = *reinterpret_cast<const uint32_t*>(rows[n] + own + 8);
    }
    return b;
  }

  // In C a lane has two columns of a row, in B two rows of a column: movmatrix transposes.
  static __device__ __forceinline__ uint32_t transposed_pair(float low, float high) {
    const auto word = __builtin_bit_cast(uint32_t, Vec<half, 2>{to_half(low), to_half(high)});
    uint32_t result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(word));
    return result;
  }

  static __device__ __forceinline__ B pack(const TileValues& c) {
    B b;
    for (int n = 0; n < 2; ++n) {
      b.word[n][0] = transposed_pair(c[4 * n], c[4 * n + 1]);
      b.word[n][1] = transposed_pair(c[4 * n + 2], c[4 * n + 3]);
    }
    return b;
  }

  static __device__ __forceinline__ void multiply(TileValues& c, A a, B b) {
    for (int n = 0; n < 2; ++n) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[4 * n]), "+f"(c[4 * n + 1]), "+f"(c[4 * n + 2]), "+f"(c[4 * n + 3])
          : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[n][0]),
            "r"(b.word[n][1]));
    }
  }
};

#else

// No matrix instructions: dot products, with A read from LDS where it is needed.
struct MatrixUnit : OneColumn {
  static constexpr int kFullTileRegisters = 0;
  static constexpr int kLargeHeadKeys = 16;
  static constexpr int kKeptQueryRegisters = 0;
  static constexpr int kLargestHeadColumns = 128;
  static constexpr int kReloadUnroll = kWave == 64 ? 1 : 2;
  struct A {
    const half *low, *high;  // k 0..7 and 8..15 of the lane's first row
    int stride;
  };
  using Pair = Vec<half, 2>;
  struct B {
    Pair pair[kTile / 2];
  };

  static __device__ __forceinline__ int first_row() { return kTileValues * (lane_id() / kTile); }
  static __device__ __forceinline__ int row(int i) { return first_row() + i; }

  // A lane's rows lie within eight: the order of their chunks is the same.
  template <class Tile>
  static __device__ __forceinline__ A load(const Tile& tile, int row, int first_chunk) {
    row += first_row();
    return {tile.chunk(row, first_chunk), tile.chunk(row, first_chunk + 1), Tile::kStride};
  }

  static __device__ __forceinline__ B load_query(const half* const (&rows)[1], int k) {
    B b;
    for (int i = 0; i < kTile / 2; ++i) {
      b.pair[i] = reinterpret_cast<const Pair*>(rows[0] + k)[i];
    }
    return b;
  }

  static __device__ __forceinline__ B pack(const TileValues& c) {
    constexpr int kPairs = kTileValues / 2;
    B b;
    for (int i = 0; i < kTile / 2; ++i) {
      const int own = i % kPairs;
      const Pair pair{to_half(c[2 * own]), to_half(c[2 * own + 1])};
      b.pair[i] = shfl(pair, i / kPairs * kTile + lane_id() % kTile);
    }
    return b;
  }

  static __device__ __forceinline__ void multiply(TileValues& c, A a, const B& b) {
    for (int i = 0; i < kTileValues; ++i) {
      for (int part = 0; part < 2; ++part) {
        // A wave of 64 lanes has two tiles, and no registers for many loads on their way together.
        if constexpr (kWave == 64) asm volatile("" ::: "memory");
        const Vec<half, 8> left = load16((part ? a.high : a.low) + i * a.stride);
        for (int k = 0; k < 4; ++k) {
          c[i] = dot2(Pair{left[2 * k], left[2 * k + 1]}, b.pair[4 * part + k], c[i]);
        }
      }
    }
  }
};

#endif

}  // namespace mma

}  // namespace rf
