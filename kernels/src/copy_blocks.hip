// Copies blocks of the KV cache to other blocks of it: copy-on-write of a shared prefix.
#include "rf/platform.h"

// pool holds one slab a layer, `layer_stride` bytes apart, each a sequence of blocks of
// `block_bytes` (a multiple of 16). pairs is [num_pairs][2]: source and destination block.
// Grid: (chunks of a block, num_pairs, layers). No destination may be a source of the same launch.
extern "C" __global__ __launch_bounds__(256) void rf_copy_blocks(uint8_t* pool,
                                                                 const int32_t* __restrict__ pairs,
                                                                 uint32_t block_bytes,
                                                                 uint64_t layer_stride) {
  const int32_t* pair = pairs + 2 * blockIdx.y;
  uint8_t* slab = pool + blockIdx.z * layer_stride;
  const uint8_t* source = slab + static_cast<uint64_t>(pair[0]) * block_bytes;
  uint8_t* destination = slab + static_cast<uint64_t>(pair[1]) * block_bytes;
  const uint32_t stride = gridDim.x * blockDim.x * 16;
  for (uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * 16; i < block_bytes; i += stride) {
    rf::store16(destination + i, rf::load16(source + i));
  }
}
