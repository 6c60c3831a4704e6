// The matrix instruction of decode attention, with both operands and the result in registers.
//
// RF_DECODE_UNIT says whether there is one whose A a lane has as few rows of as decode/matrix.h
// wants. On gfx11 lanes hold every row twice, with all k of it.
#pragma once

#include "rf/mma/mma.h"
#include "rf/wave.h"

namespace rf {

using HalfPair = Vec<half, 2>;

namespace decode {

inline constexpr int kTileTokens = 16;

// The instruction C[16 x kColumns] += A[16 x 16] * B[16 x kColumns]. For a lane:
//
// - row(slot) are its kRows rows of A; kRowLanes values of row_lane() share the rows
// - part(): of each row it has the k number part(), and of B those of the column row_lane(): four,
//   as two pairs; token_at(k) is what stands there when V^T is A
// - column(i) are its kLaneColumns columns of C, lane_column(v) is the one of its value v of four
// - score_row(v) is the row of C of value v, among its kScoreRows; token_of_row() which row that is
// - row_lane_of(v) and slot(v): whose row of A that row of C is
#if RF_NVIDIA || (RF_HOST && RF_WAVE == 32)

// mma.m16n8k16: see mma_attention.h.
struct Unit {
  static constexpr bool kTakesHalves = true;  // of a cache as they are
  static constexpr int kChains = 2;           // see matrix.h
  static constexpr int kColumns = 8;
  static constexpr int kRows = 2;
  static constexpr int kRowLanes = 8;
  static constexpr int kLaneColumns = 2;  // of C
  static constexpr int kScoreRows = 2;    // of C
  static __device__ __forceinline__ int row_lane() { return lane_id() / 4; }
  static __device__ __forceinline__ int part() { return lane_id() % 4; }
  static __device__ __forceinline__ int row(int slot) { return row_lane() + 8 * slot; }
  // Of C.
  static __device__ __forceinline__ int column(int i) { return 2 * part() + i; }
  static __device__ __forceinline__ constexpr int lane_column(int value) { return value % 2; }
  static __device__ __forceinline__ constexpr int score_row(int value) { return value / 2; }
  // Tokens of those rows of C.
  static __device__ __forceinline__ int token_of_row(int i) { return row_lane() + 8 * i; }
  static __device__ __forceinline__ int row_lane_of(int) { return row_lane(); }
  static __device__ __forceinline__ constexpr int slot(int value) { return value / 2; }
  // The token at each k of this lane.
  static __device__ __forceinline__ int token_at(int k) { return 2 * part() + k % 2 + k / 2 * 8; }
  static constexpr int lanes_of_columns(int columns) { return columns / 2; }

  template <class Combine>
  static __device__ __forceinline__ float over_column(float value, Combine combine) {
    value = combine(value, shfl_xor<4>(value));
    value = combine(value, shfl_xor<8>(value));
    return combine(value, shfl_xor<16>(value));
  }

  static __device__ __forceinline__ HalfPair transposed(float low, float high) {
    const HalfPair own{to_half(low), to_half(high)};
#if RF_HOST
    // Lane (g, t) wants the rows 2t and 2t + 1 of column g.
    const int source = 2 * part() * 4 + row_lane() / 2;
    const HalfPair first = shfl(own, source), second = shfl(own, source + 4);
    return {first[row_lane() % 2], second[row_lane() % 2]};
#else
    uint32_t result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
                 : "=r"(result)
                 : "r"(__builtin_bit_cast(uint32_t, own)));
    return __builtin_bit_cast(HalfPair, result);
#endif
  }

  // C as B.
  static __device__ __forceinline__ void pack(const float (&c)[4], HalfPair (&b)[2]) {
    b[0] = transposed(c[0], c[1]);
    b[1] = transposed(c[2], c[3]);
  }

  static __device__ __forceinline__ void multiply(float (&c)[4], const HalfPair (&a)[2][2],
                                                  const HalfPair (&b)[2]) {
#if RF_HOST
    Operands own{{a[0][0], a[0][1], a[1][0], a[1][1]}, {b[0], b[1]}, {c[0], c[1], c[2], c[3]}};
    rf_host_wave_compute(&own, lanes, __FILE__, __LINE__);
    for (int i = 0; i < 4; ++i) c[i] = own.c[i];
#else
    const auto word = [](HalfPair pair) { return __builtin_bit_cast(uint32_t, pair); };
    Mma::instruction(c, word(a[0][0]), word(a[1][0]), word(a[0][1]), word(a[1][1]), word(b[0]),
                     word(b[1]));
#endif
  }

#if RF_HOST
 private:
  struct Operands {
    HalfPair a[4], b[2];
    float c[4];
  };
  __attribute__((disable_sanitizer_instrumentation)) static void lanes(void* const* operands,
                                                                       int count) {
    for (int l = 0; l < count; ++l) {
      auto* own = static_cast<Operands*>(operands[l]);
      for (int i = 0; i < 4; ++i) {
        for (int t = 0; t < 4; ++t) {
          const auto* row = static_cast<Operands*>(operands[l / 4 * 4 + t]);
          const auto* column = static_cast<Operands*>(operands[(l % 4 * 2 + i % 2) * 4 + t]);
          for (int k = 0; k < 4; ++k) {
            own->c[i] += static_cast<float>(row->a[i / 2 * 2 + k / 2][k % 2]) *
                         static_cast<float>(column->b[k / 2][k % 2]);
          }
        }
      }
    }
  }
#endif
};
#define RF_DECODE_UNIT 1

#elif RF_MFMA || (RF_HOST && RF_WAVE == 64)

// v_mfma_f32_16x16x16_f16: see mma_attention.h.
struct Unit {
  // On CDNA2 (gfx90a) the smallest halves would count as zero, and vector instructions keep up with
  // a cache of halves.
  static constexpr bool kTakesHalves = false;
  static constexpr int kChains = 1;
  static constexpr int kColumns = 16;
  static constexpr int kRows = 1;
  static constexpr int kRowLanes = 16;
  static constexpr int kLaneColumns = 1;
  static constexpr int kScoreRows = 4;

  static __device__ __forceinline__ int row_lane() { return lane_id() % 16; }
  static __device__ __forceinline__ int part() { return lane_id() / 16; }
  static __device__ __forceinline__ int row(int) { return row_lane(); }
  static __device__ __forceinline__ int column(int) { return row_lane(); }
  static __device__ __forceinline__ constexpr int lane_column(int) { return 0; }
  static __device__ __forceinline__ constexpr int score_row(int value) { return value; }
  static __device__ __forceinline__ int token_of_row(int i) { return 4 * part() + i; }
  static __device__ __forceinline__ int row_lane_of(int value) { return 4 * part() + value; }
  static __device__ __forceinline__ constexpr int slot(int) { return 0; }
  static __device__ __forceinline__ int token_at(int k) { return 4 * part() + k; }
  static constexpr int lanes_of_columns(int columns) { return columns; }

  template <class Combine>
  static __device__ __forceinline__ float over_column(float value, Combine combine) {
    value = combine(value, shfl_xor<16>(value));
    return combine(value, shfl_xor<kWave / 2>(value));
  }

  static __device__ __forceinline__ void pack(const float (&c)[4], HalfPair (&b)[2]) {
    b[0] = HalfPair{to_half(c[0]), to_half(c[1])};
    b[1] = HalfPair{to_half(c[2]), to_half(c[3])};
  }

  static __device__ __forceinline__ void multiply(float (&c)[4], const HalfPair (&a)[1][2],
                                                  const HalfPair (&b)[2]) {
    Vec<float, 4> sums{c[0], c[1], c[2], c[3]};
    sums = mfma_16x16x16(operand(a[0]), operand(b), sums);
    for (int i = 0; i < 4; ++i) c[i] = sums[i];
  }

 private:
  static __device__ __forceinline__ Vec<half, 4> operand(const HalfPair (&pairs)[2]) {
    return {pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1]};
  }
};
#define RF_DECODE_UNIT 1

#endif

}  // namespace decode

}  // namespace rf
