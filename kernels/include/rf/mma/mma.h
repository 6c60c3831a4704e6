// Matrix instructions behind one interface: C[16][16] += A[16][K] * B[16][K]^T for one wave, with A
// and B in float16, C in float32.
//
// Both operands are rows that are contiguous in K, and are read from LDS in chunks of 8 halves (16
// bytes). `tile(row, chunk)` is whatever gives the U4 at chunk `chunk` of row `row`. A wave's C is
// spread over its lanes: element i of a lane's Acc is C[row(i)][column(i)].
//
//   for (int chunk = 0; chunk < chunks; chunk += Mma::kStepChunks)
//     Mma::multiply(c, Mma::load_a(a_tile, 0, chunk), Mma::load_b(b_tile, 0, chunk));
//
// kWideTiles says whether a wave has registers for 64x64 of C; it has for 64x32 everywhere.
//
// Where kDirectWaves is not 0, A may also be made in registers: of chunks lane_chunk() of the rows
// lane_row(0 .. kLaneRows - 1), fragment_a() makes what load_a() reads. A block that does so has
// that many waves: as few registers a wave as let enough of them run. On gfx11, whose lanes hold
// every row twice, there are not enough.
//
// The tables agree with AMD's matrix instruction calculator (gfx90a, gfx942, gfx11, gfx12).
//
// The sum over k may be taken in any order as long as A and B agree. Where an instruction wants
// pieces shorter than 16 bytes, a lane reads a whole chunk and uses its parts in consecutive
// instructions, so every fragment comes with 16-byte loads and needs no transposing load.
#pragma once

#include "rf/platform.h"

namespace rf {

using Chunk8 = Vec<uint32_t, 4>;  // 8 halves

// Whether halves below kLeastHalf count as zero in matrix instructions: AMD says so of MI200, and
// the host does it too, with waves of 64 lanes, so that tests notice.
#if defined(__gfx90a__) || defined(__gfx908__) || (RF_HOST && RF_WAVE == 64)
inline constexpr bool kFlushesHalves = true;
#else
inline constexpr bool kFlushesHalves = false;
#endif
inline constexpr float kLeastHalf = 0x1p-14f;

// The host does what Hopper GPUs do where tests say so: RF_AS_HOPPER.
#if RF_NVIDIA || (RF_HOST && RF_AS_HOPPER)

// mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"). With g = lane / 4 and
// t = lane % 4:
//   A  a0: row g, k 2t..2t+1   a1: row g+8, same k   a2: row g, k 2t+8..   a3: row g+8, k 2t+8..
//   B  b0: column g, k 2t..2t+1   b1: column g, k 2t+8..
//   C  c0, c1: row g, columns 2t, 2t+1   c2, c3: row g+8
// A lane reads chunk t of its rows: k = 8t .. 8t+7, where words 0 and 1 serve as k 2t.. and 2t+8..
// of the first instruction, words 2 and 3 of the second.
struct Mma {
  static constexpr int kStepChunks = 4;
  static constexpr bool kWideTiles = true;
  static constexpr int kDirectWaves = 4;
  struct Acc {
    float value[8];
  };
  struct Fragment {
    Chunk8 low, high;  // rows g and g + 8
  };

  static __device__ __forceinline__ int row(int i) { return lane_id() / 4 + i % 4 / 2 * 8; }
  static __device__ __forceinline__ int column(int i) {
    return lane_id() % 4 * 2 + i % 2 + i / 4 * 8;
  }

  template <class Tile>
  static __device__ __forceinline__ Fragment load_a(const Tile& tile, int first_row, int chunk) {
    const int row = first_row + lane_id() / 4;
    const int lane_chunk = chunk + lane_id() % 4;
    return {tile(row, lane_chunk), tile(row + 8, lane_chunk)};
  }
  template <class Tile>
  static __device__ __forceinline__ Fragment load_b(const Tile& tile, int first_row, int chunk) {
    return load_a(tile, first_row, chunk);
  }

  static constexpr int kLaneRows = 2;
  static __device__ __forceinline__ int lane_row(int i) { return lane_id() / 4 + 8 * i; }
  static __device__ __forceinline__ int lane_chunk() { return lane_id() % 4; }
  static __device__ __forceinline__ Fragment fragment_a(const Chunk8 (&own)[2]) {
    return {own[0], own[1]};
  }

  static __device__ __forceinline__ void multiply(Acc& c, const Fragment& a, const Fragment& b) {
#pragma unroll
    for (int word = 0; word < 4; word += 2) {
      for (int n = 0; n < 2; ++n) {
        const Chunk8& columns = n == 0 ? b.low : b.high;
        instruction(c.value + 4 * n, a.low[word], a.high[word], a.low[word + 1], a.high[word + 1],
                    columns[word], columns[word + 1]);
      }
    }
  }

  static __device__ __forceinline__ void instruction(float* c, uint32_t a0, uint32_t a1,
                                                     uint32_t a2, uint32_t a3, uint32_t b0,
                                                     uint32_t b1) {
#if RF_HOST
    const uint32_t a[] = {a0, a1, a2, a3}, b[] = {b0, b1};
    rf_host_mma(c, a, b, __builtin_FILE(), __builtin_LINE());
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
  }
};

#elif RF_GFX11

// v_wmma_f32_16x16x16_f16, wave32 (RDNA3 ISA, 7.9):
//   A  lane l: row l % 16, all 16 k (lanes 16 to 31 repeat lanes 0 to 15)
//   B  lane l: column l % 16, all 16 k, repeated too
//   C  lane l, register i: row 2i + l / 16, column l % 16
struct Mma {
  static constexpr int kStepChunks = 2;
  static constexpr bool kWideTiles = false;
  static constexpr int kDirectWaves = 0;
  struct Acc {
    Vec<float, 8> value;
  };
  using Fragment = Vec<half, 16>;

  static __device__ __forceinline__ int row(int i) { return 2 * i + lane_id() / 16; }
  static __device__ __forceinline__ int column(int) { return lane_id() % 16; }

  template <class Tile>
  static __device__ __forceinline__ Fragment load_a(const Tile& tile, int first_row, int chunk) {
    const int row = first_row + lane_id() % 16;
    const auto low = __builtin_bit_cast(Vec<half, 8>, tile(row, chunk));
    const auto high = __builtin_bit_cast(Vec<half, 8>, tile(row, chunk + 1));
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  template <class Tile>
  static __device__ __forceinline__ Fragment load_b(const Tile& tile, int first_row, int chunk) {
    return load_a(tile, first_row, chunk);
  }

  static __device__ __forceinline__ void multiply(Acc& c, Fragment a, Fragment b) {
    c.value = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c.value);
  }
};

#elif RF_GFX12

// v_wmma_f32_16x16x16_f16, wave32 (RDNA4 ISA, 7.12):
//   A  lane l, half i: row l % 16, k 8 (i / 4) + 4 (l / 16) + i % 4
//   B  lane l, half i: column l % 16, the same k
//   C  lane l, register i: row 8 (l / 16) + i, column l % 16
// A lane reads chunk l / 16 of its row instead, in A and in B: another order of the same sum.
struct Mma {
  static constexpr int kStepChunks = 2;
  static constexpr bool kWideTiles = false;
  static constexpr int kDirectWaves = 8;
  struct Acc {
    Vec<float, 8> value;
  };
  using Fragment = Vec<half, 8>;

  static __device__ __forceinline__ int row(int i) { return lane_id() / 16 * 8 + i; }
  static __device__ __forceinline__ int column(int) { return lane_id() % 16; }

  template <class Tile>
  static __device__ __forceinline__ Fragment load_a(const Tile& tile, int first_row, int chunk) {
    return __builtin_bit_cast(Fragment, tile(first_row + lane_id() % 16, chunk + lane_id() / 16));
  }
  template <class Tile>
  static __device__ __forceinline__ Fragment load_b(const Tile& tile, int first_row, int chunk) {
    return load_a(tile, first_row, chunk);
  }

  static constexpr int kLaneRows = 1;
  static __device__ __forceinline__ int lane_row(int) { return lane_id() % 16; }
  static __device__ __forceinline__ int lane_chunk() { return lane_id() / 16; }
  static __device__ __forceinline__ Fragment fragment_a(const Chunk8 (&own)[1]) {
    return __builtin_bit_cast(Fragment, own[0]);
  }

  static __device__ __forceinline__ void multiply(Acc& c, Fragment a, Fragment b) {
    c.value = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c.value);
  }
};

#elif RF_MFMA || (RF_HOST && RF_WAVE == 64)

// v_mfma_f32_16x16x16_f16, wave64 (CDNA3 ISA, 7.1.4):
//   A  lane l: row l % 16, k 4 (l / 16) .. + 3
//   B  lane l: column l % 16, k 4 (l / 16) .. + 3
//   C  lane l, register i: row 4 (l / 16) + i, column l % 16
// A lane reads chunk l / 16, whose halves serve two instructions. v_mfma_f32_16x16x32_f16 (CDNA4)
// takes the chunk at once.
#if RF_HOST
// The instruction as the table above has it. It runs outside of the lanes, whose memory accesses
// alone are watched.
struct MfmaOperands {
  Vec<half, 4> a, b;
  Vec<float, 4> c;
};
__attribute__((disable_sanitizer_instrumentation)) inline float mfma_value(half x) {
  const float value = to_float(x);
  return abs(value) < kLeastHalf ? 0.0f : value;
}
__attribute__((disable_sanitizer_instrumentation)) inline void mfma_lanes(void* const* operands,
                                                                          int lanes) {
  for (int l = 0; l < lanes; ++l) {
    auto* own = static_cast<MfmaOperands*>(operands[l]);
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 16; ++k) {
        const auto* row = static_cast<MfmaOperands*>(operands[l / 16 * 4 + i + k / 4 * 16]);
        const auto* column = static_cast<MfmaOperands*>(operands[l % 16 + k / 4 * 16]);
        own->c[i] += mfma_value(row->a[k % 4]) * mfma_value(column->b[k % 4]);
      }
    }
  }
}
__forceinline__ Vec<float, 4> mfma_16x16x16(Vec<half, 4> a, Vec<half, 4> b, Vec<float, 4> c,
                                            const char* file = __builtin_FILE(),
                                            int line = __builtin_LINE()) {
  MfmaOperands own{a, b, c};
  rf_host_wave_compute(&own, mfma_lanes, file, line);
  return own.c;
}
#else
__device__ __forceinline__ Vec<float, 4> mfma_16x16x16(Vec<half, 4> a, Vec<half, 4> b,
                                                       Vec<float, 4> c) {
  return __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0);
}
#endif

struct Mma {
  static constexpr int kStepChunks = 4;
  static constexpr bool kWideTiles = true;
  static constexpr int kDirectWaves = 8;
  struct Acc {
    Vec<float, 4> value;
  };
  using Fragment = Chunk8;

  static __device__ __forceinline__ int row(int i) { return lane_id() / 16 * 4 + i; }
  static __device__ __forceinline__ int column(int) { return lane_id() % 16; }

  template <class Tile>
  static __device__ __forceinline__ Fragment load_a(const Tile& tile, int first_row, int chunk) {
    return tile(first_row + lane_id() % 16, chunk + lane_id() / 16);
  }
  template <class Tile>
  static __device__ __forceinline__ Fragment load_b(const Tile& tile, int first_row, int chunk) {
    return load_a(tile, first_row, chunk);
  }

  static constexpr int kLaneRows = 1;
  static __device__ __forceinline__ int lane_row(int) { return lane_id() % 16; }
  static __device__ __forceinline__ int lane_chunk() { return lane_id() / 16; }
  static __device__ __forceinline__ Fragment fragment_a(const Chunk8 (&own)[1]) { return own[0]; }

  static __device__ __forceinline__ void multiply(Acc& c, Fragment a, Fragment b) {
#if defined(__gfx950__)
    using Half8 = Vec<half, 8>;
    c.value = __builtin_amdgcn_mfma_f32_16x16x32_f16(
        __builtin_bit_cast(Half8, a), __builtin_bit_cast(Half8, b), c.value, 0, 0, 0);
#else
    c.value = mfma_16x16x16(quarter(a, 0), quarter(b, 0), c.value);
    c.value = mfma_16x16x16(quarter(a, 2), quarter(b, 2), c.value);
#endif
  }

 private:
  static __device__ __forceinline__ Vec<half, 4> quarter(Fragment chunk, int word) {
    return __builtin_bit_cast(Vec<half, 4>, Vec<uint32_t, 2>{chunk[word], chunk[word + 1]});
  }
};

#else

// No matrix instructions: each lane computes a piece of C with dot products, 4x2 in waves of 32
// lanes and 2x2 in waves of 64.
struct Mma {
  static constexpr int kStepChunks = 1;
  static constexpr bool kWideTiles = false;
  static constexpr int kDirectWaves = 0;
  static constexpr int kRows = 128 / kWave;  // of a lane
  struct Acc {
    float value[2 * kRows];
  };
  struct A {
    Chunk8 rows[kRows];
  };
  struct B {
    Chunk8 rows[2];
  };

  static __device__ __forceinline__ int row(int i) { return lane_id() / 8 * kRows + i / 2; }
  static __device__ __forceinline__ int column(int i) { return lane_id() % 8 * 2 + i % 2; }

  template <class Tile>
  static __device__ __forceinline__ A load_a(const Tile& tile, int first_row, int chunk) {
    const int row = first_row + lane_id() / 8 * kRows;
    A a;
    for (int i = 0; i < kRows; ++i) a.rows[i] = tile(row + i, chunk);
    return a;
  }
  template <class Tile>
  static __device__ __forceinline__ B load_b(const Tile& tile, int first_row, int chunk) {
    const int row = first_row + lane_id() % 8 * 2;
    return {{tile(row, chunk), tile(row + 1, chunk)}};
  }

  static __device__ __forceinline__ void multiply(Acc& c, const A& a, const B& b) {
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        c.value[i] =
            dot2(__builtin_bit_cast(Vec<half, 2>, uint32_t(a.rows[i / 2][word])),
                 __builtin_bit_cast(Vec<half, 2>, uint32_t(b.rows[i % 2][word])), c.value[i]);
      }
    }
  }
};

#endif

#if RF_NVIDIA
// The same product of tiles that lie in LDS. ldmatrix gives each lane the words of its fragment
// side by side, as the instruction wants them; load_a() of Mma leaves them to be moved there, which
// takes as many instructions as the product.
struct LdsMma {
  static constexpr int kStepChunks = 2;

  template <class Tile>
  static __device__ __forceinline__ Chunk8 load_a(const Tile& tile, int first_row, int chunk) {
    const int row = first_row + lane_id() % 16;
    return platform::load_matrices(&tile(row, chunk + lane_id() / 16));
  }
  template <class Tile>
  static __device__ __forceinline__ Chunk8 load_b(const Tile& tile, int first_row, int chunk) {
    const int row = first_row + lane_id() % 8 + lane_id() / 16 * 8;
    return platform::load_matrices(&tile(row, chunk + lane_id() / 8 % 2));
  }
  static __device__ __forceinline__ void multiply(Mma::Acc& c, Chunk8 a, Chunk8 b) {
    Mma::instruction(c.value, a[0], a[1], a[2], a[3], b[0], b[1]);
    Mma::instruction(c.value + 4, a[0], a[1], a[2], a[3], b[2], b[3]);
  }
};
#else
using LdsMma = Mma;
#endif

inline constexpr int kAccValues = 256 / kWave;  // of a lane

}  // namespace rf
