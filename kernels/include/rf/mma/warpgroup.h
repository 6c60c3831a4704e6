// Matrix instructions of Hopper GPUs, which four waves issue together and which work while these go
// on (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions").
//
// C[64][N] += A[64][16] * B[16][N]: a wave has 16 rows of A and C in registers, as of two
// mma.m16n8k16 for each 16 columns (mma.h). B lies in LDS, where a descriptor says.
#pragma once

#include "rf/mma/mma.h"

#if (RF_NVIDIA && defined(__CUDA_ARCH_FEAT_SM90_ALL)) || (RF_HOST && RF_AS_HOPPER)
#define RF_WARPGROUPS 1
#endif

#if RF_WARPGROUPS && RF_NVIDIA

namespace rf {

namespace warpgroup {

inline constexpr unsigned kTileAlignment = 1024, kPlainAlignment = 128;  // bytes, in LDS

// Which four waves of the block these are, from 0 on; the same register for all lanes, so that
// descriptors that follow from it are, too.
__device__ __forceinline__ int own_index() {
  return static_cast<int>(platform::shfl_word(wave_id() / 4, 0));
}

// Before the first instruction, and where registers of operands have changed.
__device__ __forceinline__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group of instructions.
__device__ __forceinline__ void commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kGroups groups are under way.
template <int kGroups>
__device__ __forceinline__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
// Makes what this lane wrote to LDS visible to the matrix unit, after a barrier.
__device__ __forceinline__ void publish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Begins to copy kBytes, 8 or 16, or as many zeros unless `is_present`; async_commit() and
// async_wait() are for these copies, too.
template <int kBytes>
__device__ __forceinline__ void async_copy(void* lds, const void* global, bool is_present = true) {
  static_assert(kBytes == 8 || kBytes == 16);
  using Lds = __attribute__((address_space(3))) void*;
  using Global = const __attribute__((address_space(1))) void*;
  const auto to = static_cast<uint32_t>(reinterpret_cast<uint64_t>((Lds)lds));
  const auto from = reinterpret_cast<uint64_t>((Global)global);
  const int present = is_present ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(present)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(present)
                 : "memory");
  }
}

using Descriptor = uint64_t;

// What descriptors share: where a tile lies, and the bytes to the next of its parts and from eight
// rows to the next eight.
__device__ __forceinline__ Descriptor described(const void* tile, uint64_t next,
                                                uint64_t eight_rows) {
  using Lds = const __attribute__((address_space(3))) void*;
  const auto address = reinterpret_cast<uint64_t>((Lds)tile);
  return (address >> 4 & 0x3fff) | next >> 4 << 16 | eight_rows >> 4 << 32;
}
// Describes a tile in LDS, aligned to 1 KiB, of rows of 64 halves whose chunks of 16 bytes lie in
// the order of the swizzle of 128 bytes. `next`: bytes from such a tile to that of the next 64
// halves of its rows.
__device__ __forceinline__ Descriptor descriptor(const void* tile, uint64_t next) {
  constexpr uint64_t kSwizzle = 1;
  return described(tile, next, 8 * 128) | kSwizzle << 62;
}
// Describes a tile in LDS whose chunks of 16 bytes, eight halves of a row, lie side by side in the
// order of the rows; the next eight halves of the rows are `next` bytes further.
__device__ __forceinline__ Descriptor plain_descriptor(const void* tile, uint64_t next) {
  return described(tile, next, 8 * 16);
}
// `descriptor` of what lies so many bytes behind its tile.
__device__ __forceinline__ Descriptor behind(Descriptor descriptor, int bytes) {
  return descriptor + bytes / 16;
}

#define RF_REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define RF_REGISTERS_16 RF_REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define RF_REGISTERS_24 RF_REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define RF_REGISTERS_32 RF_REGISTERS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define RF_REGISTERS_64                                                              \
  RF_REGISTERS_32                                                                    \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define RF_REGISTERS_128                                                                     \
  RF_REGISTERS_64                                                                            \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"         \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"         \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
  "%111"                                                                                     \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "   \
  "%126, %127"
#define RF_EIGHT(i)                                                                               \
  "+f"(sums[i].value[0]), "+f"(sums[i].value[1]), "+f"(sums[i].value[2]), "+f"(sums[i].value[3]), \
      "+f"(sums[i].value[4]), "+f"(sums[i].value[5]), "+f"(sums[i].value[6]),                     \
      "+f"(sums[i].value[7])
#define RF_16 RF_EIGHT(0)
#define RF_32 RF_16, RF_EIGHT(1)
#define RF_48 RF_32, RF_EIGHT(2)
#define RF_64 RF_48, RF_EIGHT(3)
#define RF_128 RF_64, RF_EIGHT(4), RF_EIGHT(5), RF_EIGHT(6), RF_EIGHT(7)
#define RF_256                                                                              \
  RF_128, RF_EIGHT(8), RF_EIGHT(9), RF_EIGHT(10), RF_EIGHT(11), RF_EIGHT(12), RF_EIGHT(13), \
      RF_EIGHT(14), RF_EIGHT(15)
// The instruction for so many columns, with half as many registers of sums.
#define RF_MULTIPLY(columns, registers)                                                      \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" registers    \
               "}, {%[a0], %[a1], %[a2], %[a3]}, %[b], %[add], 1, 1, %[transposed];"         \
               : RF_##columns                                                                \
               : [a0] "r"(a[0]), [a1] "r"(a[1]), [a2] "r"(a[2]), [a3] "r"(a[3]), [b] "l"(b), \
                 [add] "n"(kAdd ? 1 : 0), [transposed] "n"(kTransposed ? 1 : 0)              \
               : "memory")

// Begins sums += a b, or sums = a b; sums[i] has columns 16 i to 16 i + 15. kTransposed: B lies in
// LDS with its columns side by side.
template <bool kAdd = true, bool kTransposed = false, int kTiles>
__device__ __forceinline__ void multiply(Mma::Acc (&sums)[kTiles], const uint32_t (&a)[4],
                                         Descriptor b) {
  static_assert(kTiles == 3 || (kTiles <= 16 && (kTiles & (kTiles - 1)) == 0));
  if constexpr (kTiles == 1) {
    RF_MULTIPLY(16, RF_REGISTERS_8);
  } else if constexpr (kTiles == 2) {
    RF_MULTIPLY(32, RF_REGISTERS_16);
  } else if constexpr (kTiles == 3) {
    RF_MULTIPLY(48, RF_REGISTERS_24);
  } else if constexpr (kTiles == 4) {
    RF_MULTIPLY(64, RF_REGISTERS_32);
  } else if constexpr (kTiles == 8) {
    RF_MULTIPLY(128, RF_REGISTERS_64);
  } else {
    RF_MULTIPLY(256, RF_REGISTERS_128);
  }
}

// The same for eight columns: values 4 to 7 stay as they are.
__device__ __forceinline__ void multiply8(Mma::Acc& sum, const uint32_t (&a)[4], Descriptor b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, "
      "1, "
      "1, 1, 0;"
      : "+f"(sum.value[0]), "+f"(sum.value[1]), "+f"(sum.value[2]), "+f"(sum.value[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
      : "memory");
}

// The same with A in LDS, in rows as those that `descriptor` describes.
template <bool kAdd = true, int kTiles>
__device__ __forceinline__ void multiply(Mma::Acc (&sums)[kTiles], Descriptor a, Descriptor b) {
  static_assert(kTiles == 4);
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" RF_REGISTERS_32
               "}, %32, %33, %34, 1, 1, 0, 0;"
               : RF_64
               : "l"(a), "l"(b), "n"(kAdd ? 1 : 0)
               : "memory");
}

// After wait(): nothing that reads the sums goes before this.
template <int kTiles>
__device__ __forceinline__ void receive(Mma::Acc (&sums)[kTiles]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) asm volatile("" : RF_EIGHT(i)::"memory");
}

#undef RF_REGISTERS_8
#undef RF_REGISTERS_16
#undef RF_REGISTERS_24
#undef RF_REGISTERS_32
#undef RF_REGISTERS_64
#undef RF_REGISTERS_128
#undef RF_16
#undef RF_32
#undef RF_48
#undef RF_64
#undef RF_128
#undef RF_256
#undef RF_MULTIPLY
#undef RF_EIGHT

}  // namespace warpgroup

}  // namespace rf

#endif

#if RF_WARPGROUPS && RF_HOST
#include "rf/mma/warpgroup_host.h"
#endif

#if RF_WARPGROUPS

namespace rf {

// kRows rows in LDS: 64 elements of each side by side, in the order of the matrix unit's swizzle of
// 128 bytes, then the next 64.
template <int kRows>
struct SwizzledTile {
  static constexpr int kColumnBytes = kRows * 128;  // from 64 elements to the next
  half* data;

  __device__ __forceinline__ half* chunk(int row, int index) const {
    return data + index / 8 * (kRows * 64) + row * 64 + (index ^ row) % 8 * 8;
  }
  __device__ __forceinline__ warpgroup::Descriptor descriptor() const {
    return warpgroup::descriptor(data, kColumnBytes);
  }
};

}  // namespace rf

#endif
