// What differs between AMD, NVIDIA and the host, behind one set of names.
//
// Kernel files are ordinary HIP C++ (`__global__`, `threadIdx`, `__shared__`, `__syncthreads()`)
// and include this header first. It needs no ROCm or CUDA header and no device library: every
// function below is a compiler builtin or a short sequence of them.
//
// This header and the three it includes hold all platform conditionals, except for the matrix
// instructions in mma.h. The names every platform header defines are listed in platform/README.md.
#pragma once

using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
using size_t = decltype(sizeof(0));

#ifndef RF_WAVE
#error "pass -DRF_WAVE=32 or 64: the number of lanes in a wave of the target"
#endif

namespace rf {

// Lanes in a wave: 64 on gfx9, 32 elsewhere. A build constant, so loops over lanes unroll.
inline constexpr int kWave = RF_WAVE;
static_assert(kWave == 32 || kWave == 64);

template <int kLanes>
struct LaneMaskOf {
  using Type = uint64_t;
};
template <>
struct LaneMaskOf<32> {
  using Type = uint32_t;
};
// One bit per lane, bit 0 for lane 0.
using LaneMask = LaneMaskOf<kWave>::Type;

// T[N] in registers; v[i], +, * and conversions work element by element.
template <class T, int kCount>
using Vec = T __attribute__((ext_vector_type(kCount)));

using half = _Float16;

namespace platform {
enum { k_x, k_y, k_z };  // axes of blocks and grids
}

}  // namespace rf

#if defined(__AMDGCN__)
#define RF_AMD 1
#include "rf/platform/amd.h"
#elif defined(__NVPTX__)
#define RF_NVIDIA 1
#include "rf/platform/nvidia.h"
#else
#define RF_HOST 1
#include "rf/platform/host.h"
#endif

#include "rf/platform/common.h"
