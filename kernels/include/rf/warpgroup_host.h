// What stands for warpgroup.h on the host, for tests: what an instruction is said to do, at once.
// Each wave has its own rows of the product, as on the device; which lane has which is that of Mma.
// Included by warpgroup.h only.
#pragma once

#include "rf/mma.h"

namespace rf {

namespace warpgroup {

inline constexpr unsigned kTileAlignment = 32;  // bytes, in LDS

// The address of a tile, and the bytes behind it.
constexpr int kAddressBits = 48;
__forceinline__ uint64_t descriptor(const void* tile, uint64_t) {
  return reinterpret_cast<uint64_t>(tile);
}
__forceinline__ uint64_t behind(uint64_t descriptor, int bytes) {
  return descriptor + (static_cast<uint64_t>(bytes) << kAddressBits);
}

struct Product {
  Mma::Acc* sums;
  int tiles;
  uint32_t a[4];
  uint64_t b;
  int rows[8], columns[8];  // of the values of a tile
};
__attribute__((disable_sanitizer_instrumentation)) inline void multiply_lanes(void* const* operands,
                                                                              int lanes) {
  const auto product = [&](int lane) { return static_cast<Product*>(operands[lane]); };
  float a[16][16];
  for (int lane = 0; lane < lanes; ++lane) {
    for (int i = 0; i < 8; ++i) {
      const auto bits = static_cast<uint16_t>(product(lane)->a[i / 2] >> (i % 2 * 16));
      a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i % 2 + i / 4 * 8] =
          static_cast<float>(__builtin_bit_cast(half, bits));
    }
  }
  const uint64_t where = product(0)->b;
  const auto* tile = reinterpret_cast<const char*>(where & ((uint64_t{1} << kAddressBits) - 1));
  for (int column = 0; column < 16 * product(0)->tiles; ++column) {
    float b[16];
    for (int k = 0; k < 16; ++k) {
      const uint64_t at = (where >> kAddressBits) + column * 128 + k * 2;
      b[k] = static_cast<float>(*reinterpret_cast<const half*>(tile + (at ^ (at >> 7 & 7) << 4)));
    }
    for (int lane = 0; lane < lanes; ++lane) {
      for (int i = 0; i < 8; ++i) {
        if (product(lane)->columns[i] != column % 16) continue;
        float& sum = product(lane)->sums[column / 16].value[i];
        for (int k = 0; k < 16; ++k) sum += a[product(lane)->rows[i]][k] * b[k];
      }
    }
  }
}

__forceinline__ void begin() {}
__forceinline__ void commit() {}
template <int kGroups>
__forceinline__ void wait() {}
__forceinline__ void publish() {}

template <int kTiles>
__forceinline__ void multiply(Mma::Acc (&sums)[kTiles], const uint32_t (&a)[4], uint64_t b,
                              const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  Product own{sums, kTiles, {a[0], a[1], a[2], a[3]}, b, {}, {}};
  for (int i = 0; i < 8; ++i) {
    own.rows[i] = Mma::row(i);
    own.columns[i] = Mma::column(i);
  }
  rf_host_wave_compute(&own, multiply_lanes, file, line);
}

template <int kTiles>
__forceinline__ void receive(Mma::Acc (&)[kTiles]) {}

}  // namespace warpgroup

}  // namespace rf
