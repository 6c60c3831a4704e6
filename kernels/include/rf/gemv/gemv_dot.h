// What GEMV does with the rows of a quantised matrix that a lane has: multiply them with int8
// activations.
#pragma once

#include "rf/gemv/gemv_tile.h"
#include "rf/weights/formats.h"

namespace rf {

// An int8 activation (act.h). Here its slices are rows that follow each other: with two slices,
// rows 2 i and 2 i + 1 are those of row i of the result.
struct Activations {
  const int8_t* q;
  const ActScale* scale;
  int rows;          // of the result
  int slices;        // 1 or 2
  int quant_blocks;  // K / 32

  struct Block {
    U4 q[2];
    ActScale scale;
  };
  // Where row m begins; rows beyond the last are the last again.
  __device__ __forceinline__ int first_quant_block(int m) const {
    const int lo = slices - 1;  // 0 or 1
    return (min(m >> lo, rows - 1) + (m & lo) * rows) * quant_blocks;
  }
  // Waits for what writes it.
  __device__ __forceinline__ void wait() const { wait_for_previous(q, scale); }
  __device__ __forceinline__ Block load(int quant_block) const {
    const U4* values = reinterpret_cast<const U4*>(q) + 2 * static_cast<int64_t>(quant_block);
    return {{values[0], values[1]}, scale[quant_block]};
  }
  // The same of row m.
  __device__ __forceinline__ Block load(int /*m*/, int quant_block) const {
    return load(quant_block);
  }
};

// Whether high nibbles may stay in their places, as 16 times the code: there is one shift for all
// of them then. It takes an instruction for unsigned bytes times signed ones.
#if RF_NVIDIA || (RF_HOST && RF_WAVE == 32)
template <class Format>
inline constexpr bool kHighInPlace = PlainNibbles<Format>;
#else
template <class Format>
inline constexpr bool kHighInPlace = false;
#endif

// sum + the dot product of four unsigned bytes and four signed ones.
__device__ __forceinline__ int dot4_unsigned(uint32_t a, int b, int sum) {
#if RF_NVIDIA
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
#else
  for (int shift = 0; shift < 32; shift += 8) {
    sum += static_cast<int>(a >> shift & 0xff) * static_cast<int8_t>(b >> shift);
  }
#endif
  return sum;
}

// Four codes as unit_dot takes them.
template <class Format, bool kInPlace>
__device__ __forceinline__ uint32_t code_of(const typename Format::Chunk& chunk, int u, int k) {
  if constexpr (kInPlace) {
    return Format::plain_nibbles(chunk, u)[k % 4] & (k < 4 ? 0x0f0f0f0fu : 0xf0f0f0f0u);
  } else {
    return Format::code(chunk, u, k);
  }
}

// The product of a quant block of weights and one of activations.
template <class Format, bool kInPlace = false>
__device__ __forceinline__ float unit_dot(const uint32_t (&code)[8],
                                          const Scales<Format::kScales>& scales,
                                          const Activations::Block& x) {
  constexpr int kParts = Format::kScales;
  const int halves[2] = {x.scale.sum_low, x.scale.sum_high};
  float result = 0.0f;
  for (int part = 0; part < kParts; ++part) {
    const int x_sum = kParts == 1 ? halves[0] + halves[1] : halves[part];
    int sum = -Format::kZero * x_sum;
    if constexpr (kInPlace) {
      int high = 0;
      for (int k = 0; k < 4; ++k) {
        sum = dot4_unsigned(code[k], static_cast<int>(x.q[0][k]), sum);
        high = dot4_unsigned(code[4 + k], static_cast<int>(x.q[1][k]), high);
      }
      sum += high >> 4;
    } else {
      for (int k = part * 8 / kParts; k < (part + 1) * 8 / kParts; ++k) {
        sum = dot4(code[k], x.q[k / 4][k % 4], sum);
      }
    }
    result += scales.scale[part] * static_cast<float>(sum);
    if constexpr (Format::kOffset) result += scales.offset[part] * static_cast<float>(x_sum);
  }
  return x.scale.scale * result;
}

// Adds to `sums` what the chunks first, first + step, ... of these rows of weights make with rows
// of activations; those begin at `first_quant_blocks`. step is a multiple of 4. Calls `begun` when
// the first weights are on their way.
template <class Format, int kRows, class X, class Begun>
__device__ __forceinline__ void gemv_dot(const Format (&rows)[kGroups], const X& x,
                                         const int (&first_quant_blocks)[kRows], int first,
                                         int step, float (&sums)[kRows][kGroups],
                                         const Begun& begun) {
  constexpr int kQuantBlocks = Format::kQuantBlocks;
  constexpr bool kInPlace = kRows == 1 && kHighInPlace<Format>;
  const int chunks = x.quant_blocks / kQuantBlocks;
  const int place = first % 4;  // the same in every step, as step is a multiple of 4
  typename Format::Chunk next[kGroups];
  const auto load_next = [&](int i) {
    for (int j = 0; j < kGroups; ++j) next[j] = rows[j].load(min(i, chunks - 1));
  };

  // The weights of the next step are on their way while this one's are used. They are asked for
  // after the last activations of this step: AMD's loads complete in order, so that waiting for the
  // activations would be waiting for the weights too.
  load_next(first);
  begun();
  for (int i = first; i < chunks; i += step) {
    uint32_t code[kQuantBlocks][kGroups][8];
    Scales<Format::kScales> scales[kQuantBlocks][kGroups];
#pragma unroll
    for (int u = 0; u < kQuantBlocks; ++u) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        for (int k = 0; k < 8; ++k) code[u][j][k] = code_of<Format, kInPlace>(next[j], u, k);
        scales[u][j] = Format::scales(next[j], place, u);
      }
    }
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      Activations::Block values[kQuantBlocks];
#pragma unroll
      for (int u = 0; u < kQuantBlocks; ++u)
        values[u] = x.load(m, first_quant_blocks[m] + i * kQuantBlocks + u);
      if (m == kRows - 1) {
        issue_loads();
        load_next(i + step);
        issue_loads();
      }
#pragma unroll
      for (int u = 0; u < kQuantBlocks; ++u) {
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
          sums[m][j] += unit_dot<Format, kInPlace>(code[u][j], scales[u][j], values[u]);
        }
      }
    }
  }
}

// The sums of both slices of each row together.
template <int kRows>
__device__ __forceinline__ void add_slices(const float (&sums)[kRows][kGroups],
                                           float (&both)[kRows / 2][kGroups]) {
#pragma unroll
  for (int m = 0; m < kRows / 2; ++m) {
    for (int j = 0; j < kGroups; ++j) both[m][j] = sums[2 * m][j] + sums[2 * m + 1][j];
  }
}

}  // namespace rf
