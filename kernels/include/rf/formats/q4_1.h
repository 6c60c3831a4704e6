// Q4_1: 32 codes of four bits, their scale and minimum.
#pragma once

#include "rf/weights/nibbles.h"

namespace rf {

struct Q4_1 : FourBits<Q4_1, Half2> {
  static constexpr int kZero = 0;
  static constexpr bool kOffset = true, kSigned = false;

  struct Block {
    static constexpr int kWeights = 32;
    half d, m;
    uint8_t qs[16];
    __device__ int code(int i) const { return nibble_of_32(qs, i); }
    __device__ Half2 scale() const { return {d, m}; }
  };
};

}  // namespace rf
