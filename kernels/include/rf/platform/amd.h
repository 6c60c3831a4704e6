// AMD: clang's amdgcn builtins. Included by rf/platform.h only.
#pragma once

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
// How many blocks a compute unit should run at once is not for the compiler to decide here.
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads)))

// Dynamic LDS, sized by the launch: `RF_DYNAMIC_LDS(float, tile);` declares `float* tile`.
#define RF_EARLY __restrict__

#define RF_DYNAMIC_LDS(T, name)                                           \
  extern __attribute__((shared, aligned(16))) unsigned char rf_dynamic[]; \
  T* const name = reinterpret_cast<T*>(rf_dynamic)

#if defined(__GFX9__)
#define RF_GFX9 1
#if !defined(__gfx906__)
#define RF_MFMA 1
#endif
#elif defined(__GFX10__)
#define RF_GFX10 1
#elif defined(__GFX11__)
#define RF_GFX11 1
#elif defined(__GFX12__)
#define RF_GFX12 1
#else
#error "unknown family of AMD GPUs: add it here, in mma.h and in build.py"
#endif

// RX 5000 cannot add up products of bytes or of halves.
#if !defined(__gfx10_1_generic__)
#define RF_DOT 1
#endif

namespace rf::platform {

// The implicit arguments of code object v5: number of blocks in x, y, z first.
__device__ __forceinline__ unsigned block_count(int axis) {
  using ConstantPointer = const __attribute__((address_space(4))) unsigned*;
  return ((ConstantPointer)__builtin_amdgcn_implicitarg_ptr())[axis];
}

}  // namespace rf::platform

#define RF_THREAD_INDEX(axis) __builtin_amdgcn_workitem_id_##axis()
#define RF_BLOCK_INDEX(axis) __builtin_amdgcn_workgroup_id_##axis()
#define RF_BLOCK_SIZE(axis) __builtin_amdgcn_workgroup_size_##axis()
#define RF_GRID_SIZE(axis) rf::platform::block_count(rf::platform::k_##axis)

__device__ __forceinline__ void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

namespace rf {

// __syncthreads() for data in LDS alone: loads and stores of global memory stay in flight.
__device__ __forceinline__ void lds_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

__device__ __forceinline__ void wave_sync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

// What they become is in LLVM's AMDGPUUsage, "Memory Model", tables "code sequences" of each
// family:
//   release  gfx942, gfx950: buffer_wbl2 sc1, vmcnt(0). gfx90a and before: vmcnt(0).
//            gfx10, gfx11: vmcnt(0), vscnt(0). gfx12: loadcnt 0, storecnt 0.
//   acquire  gfx942, gfx950: buffer_inv sc1. gfx90a and before: buffer_wbinvl1.
//            gfx10, gfx11: buffer_gl1_inv, buffer_gl0_inv. gfx12: global_inv scope:SCOPE_DEV.
__device__ __forceinline__ void device_release() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
#if defined(__gfx942__) || defined(__gfx950__) || defined(__gfx9_4_generic__)
  // LLVM does not count the write-back, and leaves the wait for it out where it knows of nothing
  // else to wait for.
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
#endif
}
__device__ __forceinline__ void device_acquire() {
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
}

__device__ __forceinline__ int lane_id() {
  if constexpr (kWave == 64) {
    return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
  } else {
    return __builtin_amdgcn_mbcnt_lo(~0u, 0);
  }
}

__device__ __forceinline__ LaneMask ballot(bool predicate) {
#if RF_WAVE == 64
  return __builtin_amdgcn_ballot_w64(predicate);
#else
  return __builtin_amdgcn_ballot_w32(predicate);
#endif
}

__device__ __forceinline__ int uniform(int value) { return __builtin_amdgcn_readfirstlane(value); }

namespace platform {

__device__ __forceinline__ uint32_t shfl_word(uint32_t value, int source_lane) {
  return __builtin_amdgcn_ds_bpermute(source_lane << 2, value);
}

// DPP moves data between lanes without going through the LDS unit; ds_swizzle and ds_bpermute
// are for the patterns DPP does not have.
template <int kMask>
__device__ __forceinline__ uint32_t shfl_xor_word(uint32_t value) {
  constexpr int kAllRows = 0xf;
  if constexpr (kMask < 4) {
    constexpr int kQuadPerm = (0 ^ kMask) | (1 ^ kMask) << 2 | (2 ^ kMask) << 4 | (3 ^ kMask) << 6;
    return __builtin_amdgcn_update_dpp(0, value, kQuadPerm, kAllRows, kAllRows, true);
#if !RF_GFX9
  } else if constexpr (kMask < 16) {
    constexpr int kRowXmask = 0x160 | kMask;
    return __builtin_amdgcn_update_dpp(0, value, kRowXmask, kAllRows, kAllRows, true);
  } else if constexpr (kMask == 16) {
    return __builtin_amdgcn_permlanex16(value, value, 0x76543210, 0xfedcba98, false, false);
#endif
  } else if constexpr (kMask < 32) {
    constexpr int kKeepLaneBits = 0x1f;
    return __builtin_amdgcn_ds_swizzle(value, kMask << 10 | kKeepLaneBits);
  } else {
    return shfl_word(value, lane_id() ^ kMask);
  }
}

}  // namespace platform

#if !RF_DOT
// What a value consists of is taken apart again where it is used next, instead of being kept: that
// takes more registers than there are.
template <class T>
__device__ __forceinline__ void forget(T& value) {
  asm volatile("" : "+v"(value));
}
#endif

// sum + the dot product of four signed bytes.
__device__ __forceinline__ int dot4(int a, int b, int sum) {
#if RF_GFX11 || RF_GFX12
  return __builtin_amdgcn_sudot4(true, a, true, b, sum, false);
#elif RF_DOT
  return __builtin_amdgcn_sdot4(a, b, sum, false);
#else
  forget(a);
  forget(b);
#pragma unroll
  for (int shift = 0; shift < 32; shift += 8) {
    sum += static_cast<int8_t>(a >> shift) * static_cast<int8_t>(b >> shift);
  }
  return sum;
#endif
}

// sum + the dot product of two halves, in float32.
__device__ __forceinline__ float dot2(Vec<half, 2> a, Vec<half, 2> b, float sum) {
#if RF_DOT
  return __builtin_amdgcn_fdot2(a, b, sum, false);
#else
  forget(b);
  sum += static_cast<float>(a[0]) * static_cast<float>(b[0]);
  return sum + static_cast<float>(a[1]) * static_cast<float>(b[1]);
#endif
}

// Byte i of the result is byte `selectors`.i (0 to 7) of high:low.
__device__ __forceinline__ uint32_t byte_select(uint32_t low, uint32_t high, uint32_t selectors) {
  return __builtin_amdgcn_perm(high, low, selectors);
}

}  // namespace rf

#include "rf/platform/table_select.h"

namespace rf {

// Kernels begin when the one before them has ended.
inline constexpr bool kBeginsEarly = false;
template <class... Pointer>
__device__ __forceinline__ void wait_for_previous(Pointer...) {}
__device__ __forceinline__ void let_next_begin() {}
__device__ __forceinline__ void let_next_begin_if_few() {}

// Whether async_copy16 goes around the registers and lets the lane continue.
inline constexpr bool kHasAsyncCopy = false;
__device__ __forceinline__ void async_copy16(void* lds, const void* global) {
  *static_cast<Vec<uint32_t, 4>*>(lds) = *static_cast<const Vec<uint32_t, 4>*>(global);
}
__device__ __forceinline__ void async_commit() {}
template <int kGroups = 0>
__device__ __forceinline__ void async_wait() {}

// v_exp_f32, v_log_f32, ...: within 1 ULP.
__device__ __forceinline__ float exp2(float x) { return __builtin_amdgcn_exp2f(x); }
__device__ __forceinline__ float log2(float x) { return __builtin_amdgcn_logf(x); }
__device__ __forceinline__ float sqrt(float x) { return __builtin_amdgcn_sqrtf(x); }
__device__ __forceinline__ float rsqrt(float x) { return __builtin_amdgcn_rsqf(x); }
__device__ __forceinline__ float rcp(float x) { return __builtin_amdgcn_rcpf(x); }

// Relaxed, visible to the whole device.
template <class T>
__device__ __forceinline__ T atomic_add(T* address, T value) {
  return __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

}  // namespace rf
