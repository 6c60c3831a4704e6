// NVIDIA: clang's NVPTX builtins and a few PTX instructions. Included by rf/platform.h only.
#pragma once

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))

#define RF_DYNAMIC_LDS(T, name)                                           \
  extern __attribute__((shared, aligned(16))) unsigned char rf_dynamic[]; \
  T* const name = reinterpret_cast<T*>(rf_dynamic)

// The same with more than the 48 KiB that arrays may take together. The comment tells the builder,
// and it the launch, how much.
#define RF_LARGE_LDS(T, name) \
  RF_DYNAMIC_LDS(T, name);    \
  asm volatile("// large lds %0" ::"n"(sizeof(T)))

// In place of __restrict__, for what a kernel asks for before it waits for the one in front: loads
// of what looks constant, NVIDIA's assembler would move behind that.
#define RF_EARLY

static_assert(RF_WAVE == 32, "a warp of an NVIDIA GPU has 32 lanes");

#define RF_THREAD_INDEX(axis) __nvvm_read_ptx_sreg_tid_##axis()
#define RF_BLOCK_INDEX(axis) __nvvm_read_ptx_sreg_ctaid_##axis()
#define RF_BLOCK_SIZE(axis) __nvvm_read_ptx_sreg_ntid_##axis()
#define RF_GRID_SIZE(axis) __nvvm_read_ptx_sreg_nctaid_##axis()

// __syncthreads() is a builtin.

namespace rf {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

__device__ __forceinline__ void lds_barrier() { __syncthreads(); }

// A kernel may be launched while the one before it runs (programmatic dependent launch, CUDA's
// programming guide). This waits for the end of that, and of all before it; what the pointers lead
// to may be what those wrote, so it is not read before. A kernel that does not say where begins
// with it: kernels/compiler.py.
#if __CUDA_ARCH__ >= 900
inline constexpr bool kBeginsEarly = true;
template <class... Pointer>
__device__ __forceinline__ void wait_for_previous(Pointer... pointers) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  // Else the compiler would be free to read ahead what looks constant.
  const auto change = [](auto* pointer) { asm volatile("" ::"l"(pointer) : "memory"); };
  (change(pointers), ...);
}
// Lets the next kernel be launched as soon as all blocks of this one have come here, after they
// waited, or ended. Early in a kernel, that is for few blocks, among which the next one's find room
// on all multiprocessors alike. Among more, they would crowd where those end first.
inline constexpr int kFewBlocks = 160;
__device__ __forceinline__ void let_next_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void let_next_begin_if_few() {
  if (RF_GRID_SIZE(x) * RF_GRID_SIZE(y) * RF_GRID_SIZE(z) <= kFewBlocks) let_next_begin();
}
#else
inline constexpr bool kBeginsEarly = false;
template <class... Pointer>
__device__ __forceinline__ void wait_for_previous(Pointer...) {}
__device__ __forceinline__ void let_next_begin() {}
__device__ __forceinline__ void let_next_begin_if_few() {}
#endif

__device__ __forceinline__ void wave_sync() { __nvvm_bar_warp_sync(kAllLanes); }

// PTX has one fence for both, cumulative over barriers (PTX ISA, "Memory Consistency Model").
__device__ __forceinline__ void device_release() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
__device__ __forceinline__ void device_acquire() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

__device__ __forceinline__ int lane_id() { return __nvvm_read_ptx_sreg_laneid(); }

__device__ __forceinline__ LaneMask ballot(bool predicate) {
  return __nvvm_vote_ballot_sync(kAllLanes, predicate);
}

__device__ __forceinline__ int uniform(int value) { return value; }

namespace platform {

__device__ __forceinline__ uint32_t shfl_word(uint32_t value, int source_lane) {
  return __nvvm_shfl_sync_idx_i32(kAllLanes, value, source_lane, kWave - 1);
}

template <int kMask>
__device__ __forceinline__ uint32_t shfl_xor_word(uint32_t value) {
  return __nvvm_shfl_sync_bfly_i32(kAllLanes, value, kMask, kWave - 1);
}

}  // namespace platform

__device__ __forceinline__ int dot4(int a, int b, int sum) {
  asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
  return sum;
}

__device__ __forceinline__ float dot2(Vec<half, 2> a, Vec<half, 2> b, float sum) {
  return static_cast<float>(a[0]) * static_cast<float>(b[0]) +
         (static_cast<float>(a[1]) * static_cast<float>(b[1]) + sum);
}

// prmt takes its selectors in nibbles.
__device__ __forceinline__ uint32_t byte_select(uint32_t low, uint32_t high, uint32_t selectors) {
  const uint32_t neighbours = selectors | selectors >> 4;
  return __nvvm_prmt(low, high, __nvvm_prmt(neighbours, 0, 0x4420));
}

// The bytes of a table of sixteen that the low nibbles of `codes`, or else the high ones, stand
// for: selectors are the codes themselves, four at a time, both kinds in turn. Where both are asked
// for, the compiler sees that all but the last step is the same.
__device__ __forceinline__ uint32_t table_select(Vec<uint32_t, 4> table, uint32_t codes,
                                                 bool high_nibbles) {
  const auto four = [&](uint32_t selectors) {  // the low 16 bits count
    const uint32_t low = __nvvm_prmt(table[0], table[1], selectors & 0x7777u);
    const uint32_t high = __nvvm_prmt(table[2], table[3], selectors & 0x7777u);
    return __nvvm_prmt(low, high, 0x3210u | (selectors & 0x8888u) >> 1);
  };
  return __nvvm_prmt(four(codes), four(codes >> 16), high_nibbles ? 0x7531u : 0x6420u);
}

// A constant that ptxas keeps in a register of each lane. It would put it into one of the warp and
// copy it from there for each use. No lane is above itself.
__device__ __forceinline__ uint32_t kept(uint32_t constant) {
  return constant + (__nvvm_read_ptx_sreg_lanemask_eq() & __nvvm_read_ptx_sreg_lanemask_gt());
}

// zero +- a magnitude of eight, by nibbles: the sign is their highest bit. A selector with that bit
// gives prmt the sign of the byte, which is 0, in place of the byte: so twice the magnitude of
// positive ones and zero minus that of all make it, in fewer instructions than a table of sixteen.
__device__ __forceinline__ uint32_t mirror_select(Vec<uint32_t, 2> magnitudes, int zero,
                                                  uint32_t codes, bool high_nibbles) {
  const uint32_t zeros = static_cast<uint32_t>(zero) * 0x01010101u;
  const uint32_t unsigned_codes = codes & 0x77777777u;
  const auto four = [&](int shift) {
    const uint32_t positive = __nvvm_prmt(kept(magnitudes[0]), magnitudes[1], codes >> shift);
    const uint32_t below =
        __nvvm_prmt(kept(zeros - magnitudes[0]), zeros - magnitudes[1], unsigned_codes >> shift);
    return positive * 2 + below;
  };
  return __nvvm_prmt(four(0), four(16), high_nibbles ? 0x7531u : 0x6420u);
}

inline constexpr bool kHasAsyncCopy = true;
__device__ __forceinline__ void async_copy16(void* lds, const void* global) {
  using Lds = __attribute__((address_space(3))) void*;
  using Global = const __attribute__((address_space(1))) void*;
  __nvvm_cp_async_cg_shared_global_16((Lds)lds, (Global)global);
}
__device__ __forceinline__ void async_commit() { __nvvm_cp_async_commit_group(); }
// Waits until at most kGroups groups of copies are under way; other lanes see the rest after a
// barrier. 0: for all copies of this lane.
template <int kGroups = 0>
__device__ __forceinline__ void async_wait() {
  if constexpr (kGroups == 0) {
    __nvvm_cp_async_wait_all();
  } else {
    __nvvm_cp_async_wait_group(kGroups);
  }
}

namespace platform {

// ldmatrix: lanes 0-7, 8-15, ... give the addresses of the rows of four 8 x 8 matrices of halves.
__device__ __forceinline__ Vec<uint32_t, 4> load_matrices(const void* row) {
  using Lds = const __attribute__((address_space(3))) void*;
  const auto address = static_cast<uint32_t>(reinterpret_cast<uint64_t>((Lds)row));
  uint32_t word[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(address)
               : "memory");
  return {word[0], word[1], word[2], word[3]};
}

}  // namespace platform

// ex2.approx, lg2.approx, ...: within 2 ULP.
__device__ __forceinline__ float exp2(float x) { return __nvvm_ex2_approx_ftz_f(x); }
__device__ __forceinline__ float log2(float x) { return __nvvm_lg2_approx_f(x); }
__device__ __forceinline__ float sqrt(float x) { return __nvvm_sqrt_approx_f(x); }
__device__ __forceinline__ float rsqrt(float x) { return __nvvm_rsqrt_approx_f(x); }
__device__ __forceinline__ float rcp(float x) { return __nvvm_rcp_approx_ftz_f(x); }

template <class T>
__device__ __forceinline__ T atomic_add(T* address, T value) {
  return __scoped_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}

}  // namespace rf
