// What stands for warpgroup.h on the host, for tests. The library that runs kernels there does what
// the instructions are said to do, as late as the kernel allows (tests/platform/host/warpgroup.h).
// Included by warpgroup.h only.
#pragma once

#include "rf/mma/mma.h"

namespace rf {

namespace warpgroup {

inline constexpr unsigned kTileAlignment = 32, kPlainAlignment = 32;  // bytes, in LDS

template <int kBytes>
__forceinline__ void async_copy(void* lds, const void* global, bool is_present = true) {
  static_assert(kBytes == 8 || kBytes == 16);
  rf_host_async_copy(lds, global, kBytes, is_present);
}

using Descriptor = RfHostTile;

// Descriptors count in 16 bytes.
__forceinline__ int64_t in_chunks(int64_t bytes) { return bytes / 16 * 16; }
__forceinline__ Descriptor descriptor(const void* tile, uint64_t next) {
  return {tile, 0, in_chunks(next), true};
}
__forceinline__ Descriptor plain_descriptor(const void* tile, uint64_t next) {
  return {tile, 0, in_chunks(next), false};
}
__forceinline__ Descriptor behind(Descriptor descriptor, int bytes) {
  descriptor.offset += in_chunks(bytes);
  return descriptor;
}

__forceinline__ int own_index() { return wave_id() / 4; }
__forceinline__ void begin() { rf_host_warpgroup_begin(); }
__forceinline__ void commit() { rf_host_warpgroup_commit(); }
template <int kGroups>
__forceinline__ void wait(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  rf_host_warpgroup_wait(kGroups, file, line);
}
__forceinline__ void publish() { rf_host_warpgroup_publish(); }

template <bool kAdd = true, bool kTransposed = false, int kTiles>
__forceinline__ void multiply(Mma::Acc (&sums)[kTiles], const uint32_t (&a)[4], Descriptor b,
                              const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  static_assert(sizeof(sums) == kTiles * 8 * sizeof(float));
  const RfHostProduct product{sums[0].value, a, {}, b, 16 * kTiles, kAdd, kTransposed};
  rf_host_warpgroup_multiply(&product, file, line);
}
__forceinline__ void multiply8(Mma::Acc& sum, const uint32_t (&a)[4], Descriptor b,
                               const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const RfHostProduct product{sum.value, a, {}, b, 8, true, false};
  rf_host_warpgroup_multiply(&product, file, line);
}
template <bool kAdd = true, int kTiles>
__forceinline__ void multiply(Mma::Acc (&sums)[kTiles], Descriptor a, Descriptor b,
                              const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const RfHostProduct product{sums[0].value, nullptr, a, b, 16 * kTiles, kAdd, false};
  rf_host_warpgroup_multiply(&product, file, line);
}

template <int kTiles>
__forceinline__ void receive(Mma::Acc (&)[kTiles]) {}

}  // namespace warpgroup

}  // namespace rf
