// Q4_0: 32 codes of four bits around 8 and their scale.
#pragma once

#include "rf/weights/nibbles.h"

namespace rf {

struct Q4_0 : FourBits<Q4_0, half> {
  static constexpr int kZero = 8;
  static constexpr bool kOffset = false, kSigned = false;

  struct Block {
    static constexpr int kWeights = 32;
    half d;
    uint8_t qs[16];
    __device__ int code(int i) const { return nibble_of_32(qs, i); }
    __device__ half scale() const { return d; }
  };
};

}  // namespace rf
