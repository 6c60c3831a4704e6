// The host: lanes are fibers of tests/platform/host, which watches every load and store.
// Included by rf/platform.h only.
//
// One block runs at a time, so a static array is what LDS is on a GPU: shared by the lanes of a
// block, and nothing that a block leaves in it can be of use to the next (reading it is an error).
#pragma once

#define __global__
#define __device__ __attribute__((internal_linkage))
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#define RF_EARLY __restrict__

#define RF_DYNAMIC_LDS(T, name) T* const name = static_cast<T*>(rf_host_dynamic_lds())
#define RF_LARGE_LDS(T, name) \
  __shared__ T name##_array;  \
  T* const name = &name##_array

#include "rf/platform/host_abi.h"

extern "C" {
float exp2f(float);
float log2f(float);
float sqrtf(float);
}

#define RF_THREAD_INDEX(axis) rf_host_lane()->thread[rf::platform::k_##axis]
#define RF_BLOCK_INDEX(axis) rf_host_lane()->block[rf::platform::k_##axis]
#define RF_BLOCK_SIZE(axis) rf_host_lane()->block_dim[rf::platform::k_##axis]
#define RF_GRID_SIZE(axis) rf_host_lane()->grid_dim[rf::platform::k_##axis]

// The default arguments name the caller's line in reports.
__forceinline__ void __syncthreads(const char* file = __builtin_FILE(),
                                   int line = __builtin_LINE()) {
  rf_host_barrier(file, line);
}

namespace rf {

__forceinline__ void lds_barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  rf_host_barrier(file, line);
}

__forceinline__ void wave_sync(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  rf_host_wave_sync(file, line);
}

__forceinline__ void device_release() { rf_host_device_release(); }
__forceinline__ void device_acquire() { rf_host_device_acquire(); }

__forceinline__ int lane_id() { return rf_host_lane()->lane; }

__forceinline__ LaneMask ballot(bool predicate, const char* file = __builtin_FILE(),
                                int line = __builtin_LINE()) {
  return static_cast<LaneMask>(rf_host_ballot(predicate, file, line));
}

__forceinline__ int uniform(int value, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
  return rf_host_uniform(value, file, line);
}

namespace platform {

__forceinline__ uint32_t shfl_word(uint32_t value, int source_lane,
                                   const char* file = __builtin_FILE(),
                                   int line = __builtin_LINE()) {
  return static_cast<uint32_t>(rf_host_shuffle(value, source_lane, file, line));
}

template <int kMask>
__forceinline__ uint32_t shfl_xor_word(uint32_t value, const char* file = __builtin_FILE(),
                                       int line = __builtin_LINE()) {
  return shfl_word(value, lane_id() ^ kMask, file, line);
}

}  // namespace platform

__forceinline__ int dot4(int a, int b, int sum) {
  for (int shift = 0; shift < 32; shift += 8) {
    sum += static_cast<int8_t>(a >> shift) * static_cast<int8_t>(b >> shift);
  }
  return sum;
}

__forceinline__ float dot2(Vec<half, 2> a, Vec<half, 2> b, float sum) {
  return static_cast<float>(a[0]) * static_cast<float>(b[0]) +
         (static_cast<float>(a[1]) * static_cast<float>(b[1]) + sum);
}

__forceinline__ uint32_t byte_select(uint32_t low, uint32_t high, uint32_t selectors) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t result = 0;
  for (int shift = 0; shift < 32; shift += 8) {
    result |= static_cast<uint32_t>(bytes >> (8 * (selectors >> shift & 7)) & 0xff) << shift;
  }
  return result;
}

}  // namespace rf

#include "rf/platform/table_select.h"

namespace rf {

// Kernels begin when the one before them has ended.
#if RF_AS_HOPPER
inline constexpr bool kBeginsEarly = true;
#else
inline constexpr bool kBeginsEarly = false;
#endif
template <class... Pointer>
__forceinline__ void wait_for_previous(Pointer...) {}
__forceinline__ void let_next_begin() {}
__forceinline__ void let_next_begin_if_few() {}

// Only kernels for Hopper GPUs copy so, which tests run here, too.
inline constexpr bool kHasAsyncCopy = false;
__forceinline__ void async_copy16(void* lds, const void* global) {
  rf_host_async_copy(lds, global, 16, true);
}
__forceinline__ void async_commit() { rf_host_async_commit(); }
template <int kGroups = 0>
__forceinline__ void async_wait() {
  kGroups == 0 ? rf_host_async_wait_all() : rf_host_async_wait(kGroups);
}

__forceinline__ float exp2(float x) { return exp2f(x); }
__forceinline__ float log2(float x) { return log2f(x); }
__forceinline__ float sqrt(float x) { return sqrtf(x); }
__forceinline__ float rsqrt(float x) { return 1.0f / sqrtf(x); }
__forceinline__ float rcp(float x) { return 1.0f / x; }

// rf_host_atomic has checked the access; the operation itself is not to be taken for another one.
template <class T>
__attribute__((noinline, no_sanitize("address"))) T atomic_add(T* address, T value) {
  rf_host_atomic(address, sizeof(T));
  return __scoped_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
}  // namespace rf
