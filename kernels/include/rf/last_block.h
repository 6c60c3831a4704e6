// The last thread block to finish does what needs the results of all of them, so that no second
// launch is needed for it. Nobody waits for anybody: blocks may run in any order, one by one.
#pragma once

#include "rf/platform.h"

namespace rf {

// Whether `blocks` blocks have come here, this one being the last; the same in all threads. All of
// them call it. Then what those blocks have written before may be read.
//
// `arrived` counts them; it is 0 before and after, so that a captured graph finds it as it was.
//
// Each wave releases what it has stored itself: of the waves of a block, only the one that counts
// is ordered with the counter, and a release of that one need not wait for stores of the others
// on CDNA, where a barrier lets them be on their way.
__device__ __forceinline__ bool is_last_block(uint32_t* arrived, uint32_t blocks) {
  __shared__ bool is_last;
  device_release();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomic_add(arrived, 1u) == blocks - 1;
  __syncthreads();
  if (!is_last) return false;
  device_acquire();
  if (threadIdx.x == 0) *arrived = 0;
  return true;
}

// The same for `count` counters at once, no more than kMost or than threads: whether this block was
// the last at counter i, of which blocks_at(i) blocks come to counter_at(i). `is_last` is in LDS.
template <int kMost, class CounterAt, class BlocksAt>
__device__ __forceinline__ void are_last_blocks(int count, CounterAt counter_at, BlocksAt blocks_at,
                                                bool (&is_last)[kMost]) {
  const int i = static_cast<int>(threadIdx.x);
  uint32_t* counter = i < count ? counter_at(i) : nullptr;
  const uint32_t blocks = i < count ? blocks_at(i) : 0;
  device_release();
  __syncthreads();
  if (i < count) is_last[i] = atomic_add(counter, 1u) == blocks - 1;
  __syncthreads();
  device_acquire();
  if (i < count && is_last[i]) *counter = 0;
}

}  // namespace rf
