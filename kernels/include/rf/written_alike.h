// Bytes of global memory that several blocks of a launch write, all with the same values.
//
// Each of them reads what it has written itself, behind a barrier of its own, so that it is all one
// whose write comes first: memory never holds anything else. Stores of lanes are whole bytes on
// every target, and caches of a GPU that are not coherent within a launch write back no others.
#pragma once

#include "rf/platform.h"

namespace rf {

// Says so before the block ends, one thread for all. The host compares what blocks leave there; a
// block that reads it and has not written it is a mistake there as everywhere.
__device__ __forceinline__ void written_alike([[maybe_unused]] const void* address,
                                              [[maybe_unused]] int64_t bytes) {
#if RF_HOST
  rf_host_write_alike(address, bytes);
#endif
}

}  // namespace rf
