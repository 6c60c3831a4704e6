// Copies blocks of the KV cache to the host's memory and back. A block has a part in each array of
// each layer; in the host's memory all of them lie together.
#include "rf/wave.h"
#include "rf/weights/weights.h"

namespace rf {

inline constexpr int kCopyThreads = 256;
inline constexpr int kCopyLoads = 4;  // on their way at once, as the bus is far

}  // namespace rf

// Array a has blocks of part_bytes[a], a multiple of 16; it begins arrays[a] bytes behind cache,
// and its part of a block starts[a] bytes behind the block's begin in the host's memory. pairs
// [count] of a block and a slot, whose bytes are host + slot * block_bytes. No place is written
// twice. Grid: any number of blocks, of 256 threads.
extern "C" __global__ __launch_bounds__(rf::kCopyThreads) void rf_copy_blocks(
    uint8_t* __restrict__ cache, const int64_t* __restrict__ arrays,
    const int64_t* __restrict__ part_bytes, const int64_t* __restrict__ starts,
    const int32_t* __restrict__ pairs, uint8_t* __restrict__ host, int64_t block_bytes,
    int num_arrays, int count, int to_host) {
  const int items = num_arrays * count;
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
    const int pair = item / num_arrays, array = item % num_arrays;
    const int64_t block = pairs[2 * pair], slot = pairs[2 * pair + 1];
    uint8_t* on_device = cache + arrays[array] + block * part_bytes[array];
    uint8_t* on_host = host + slot * block_bytes + starts[array];
    const uint8_t* from = to_host != 0 ? on_device : on_host;
    uint8_t* to = to_host != 0 ? on_host : on_device;
    const int64_t pieces = part_bytes[array] / 16;
    int64_t piece = static_cast<int64_t>(threadIdx.x);
    for (; piece < pieces; piece += rf::kCopyThreads * rf::kCopyLoads) {
      rf::U4 held[rf::kCopyLoads];
#pragma unroll
      for (int i = 0; i < rf::kCopyLoads; ++i) {
        const int64_t at = piece + i * rf::kCopyThreads;
        held[i] = *reinterpret_cast<const rf::U4*>(from + (at < pieces ? at : piece) * 16);
      }
#pragma unroll
      for (int i = 0; i < rf::kCopyLoads; ++i) {
        const int64_t at = piece + i * rf::kCopyThreads;
        if (at < pieces) *reinterpret_cast<rf::U4*>(to + at * 16) = held[i];
      }
    }
  }
}
