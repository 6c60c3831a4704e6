// IQ4_NL: 32 codes of four bits that stand for bytes of a table, and their scale.
#pragma once

#include "rf/formats/q4_0.h"

namespace rf {

struct IQ4_NL : FourBits<IQ4_NL, half> {
  static constexpr int kZero = 0;
  static constexpr bool kOffset = false, kSigned = true;

  using Block = Q4_0::Block;

  static __device__ __forceinline__ uint32_t code(const Chunk& chunk, int, int k) {
    return unpack::lookup(table(), chunk.nibbles, k);
  }

  // The values of IQ4_NL and IQ4_XS.
  static __device__ __forceinline__ U4 table() {
    return U4{unpack::pack(-127, -104, -83, -65), unpack::pack(-49, -35, -22, -10),
              unpack::pack(1, 13, 25, 38), unpack::pack(53, 69, 89, 113)};
  }
};

}  // namespace rf
