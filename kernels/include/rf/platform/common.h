// Built from the platform's primitives, the same everywhere. Included by rf/platform.h only.
#pragma once

namespace rf::platform {

// The `value` of an axis, as the platform has it.
#define RF_AXES(Name, value)                                                \
  struct Name {                                                             \
    static __device__ __forceinline__ unsigned get_x() { return value(x); } \
    static __device__ __forceinline__ unsigned get_y() { return value(y); } \
    static __device__ __forceinline__ unsigned get_z() { return value(z); } \
  }
RF_AXES(ThreadIdx, RF_THREAD_INDEX);
RF_AXES(BlockIdx, RF_BLOCK_INDEX);
RF_AXES(BlockDim, RF_BLOCK_SIZE);
RF_AXES(GridDim, RF_GRID_SIZE);

// threadIdx.x and its relatives: objects without data whose members are function calls.
template <class Source>
struct Index3 {
  __declspec(property(get = get_x)) unsigned x;
  __declspec(property(get = get_y)) unsigned y;
  __declspec(property(get = get_z)) unsigned z;
  static __device__ __forceinline__ unsigned get_x() { return Source::get_x(); }
  static __device__ __forceinline__ unsigned get_y() { return Source::get_y(); }
  static __device__ __forceinline__ unsigned get_z() { return Source::get_z(); }
};

// A value as 32-bit words, which is what moves between lanes.
template <class T>
struct Words {
  static_assert(sizeof(T) % 4 == 0 || sizeof(T) < 4);
  static constexpr int kCount = sizeof(T) < 4 ? 1 : sizeof(T) / 4;
  uint32_t word[kCount];

  static __device__ __forceinline__ Words of(T value) {
    Words words{};
    __builtin_memcpy(words.word, &value, sizeof(T));
    return words;
  }
  __device__ __forceinline__ T value() const {
    T result;
    __builtin_memcpy(&result, word, sizeof(T));
    return result;
  }
};

}  // namespace rf::platform

[[maybe_unused]] static constexpr rf::platform::Index3<rf::platform::ThreadIdx> threadIdx{};
[[maybe_unused]] static constexpr rf::platform::Index3<rf::platform::BlockIdx> blockIdx{};
[[maybe_unused]] static constexpr rf::platform::Index3<rf::platform::BlockDim> blockDim{};
[[maybe_unused]] static constexpr rf::platform::Index3<rf::platform::GridDim> gridDim{};

namespace rf {

// Every lane of the wave must reach the functions of this group; on the host it is checked.

// The value of lane `source_lane` of this wave.
template <class T>
__device__ __forceinline__ T shfl(T value, int source_lane) {
  auto words = platform::Words<T>::of(value);
  for (uint32_t& word : words.word) word = platform::shfl_word(word, source_lane);
  return words.value();
}

// The value of lane `lane_id() ^ kMask`, by register moves instead of LDS traffic where it can.
template <int kMask, class T>
__device__ __forceinline__ T shfl_xor(T value) {
  static_assert(kMask > 0 && kMask < kWave);
  auto words = platform::Words<T>::of(value);
  for (uint32_t& word : words.word) word = platform::shfl_xor_word<kMask>(word);
  return words.value();
}

// Index of this wave in a one-dimensional block.
__device__ __forceinline__ int wave_id() { return static_cast<int>(threadIdx.x) / kWave; }

__device__ __forceinline__ float abs(float x) { return __builtin_fabsf(x); }
__device__ __forceinline__ float max(float a, float b) { return __builtin_fmaxf(a, b); }
__device__ __forceinline__ float min(float a, float b) { return __builtin_fminf(a, b); }
__device__ __forceinline__ float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
__device__ __forceinline__ float rint(float x) { return __builtin_rintf(x); }
__device__ __forceinline__ int max(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ int min(int a, int b) { return a < b ? a : b; }

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.693147180559945309417f;
inline constexpr float kInfinity = __builtin_inff();

__device__ __forceinline__ float exp(float x) { return exp2(x * kLog2E); }
__device__ __forceinline__ float log(float x) { return log2(x) * kLn2; }

// Relative error below 1e-6. The series avoids the cancellation of the closed form near 0.
__device__ __forceinline__ float tanh(float x) {
  const float square = x * x;
  const float series =
      x * (1.0f + square * (-1.0f / 3 + square * (2.0f / 15 + square * (-17.0f / 315))));
  const float closed = 1.0f - 2.0f * rcp(exp2(x * (2.0f * kLog2E)) + 1.0f);
  return abs(x) < 0.2f ? series : closed;
}

// bfloat16 as stored: the upper half of a float32.
struct bf16 {
  uint16_t bits;
};

__device__ __forceinline__ float to_float(half x) { return static_cast<float>(x); }
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}
__device__ __forceinline__ half to_half(float x) { return static_cast<half>(x); }

// 16 bytes in one instruction. The address must be a multiple of 16.
template <class T>
using Vec16 = Vec<T, 16 / sizeof(T)>;

template <class T>
__device__ __forceinline__ Vec16<T> load16(const T* address) {
  return *reinterpret_cast<const Vec16<T>*>(address);
}

template <class T>
__device__ __forceinline__ void store16(T* address, Vec16<T> value) {
  *reinterpret_cast<Vec16<T>*>(address) = value;
}

// A T at an address with the alignment kAlign only (quantised blocks begin at even addresses).
template <class T, int kAlign = 1>
__device__ __forceinline__ T load_unaligned(const void* address) {
  T value;
  __builtin_memcpy(&value, __builtin_assume_aligned(address, kAlign), sizeof(T));
  return value;
}

}  // namespace rf
