// Where the matrix of each expert of a layer lies.
#pragma once

#include "rf/platform.h"

namespace rf {

// One after the other from `first`, or each as many bytes from there as `places` says: then some
// lie in memory of the host that is mapped. Distances and not pointers, as the compiler knows of
// what belongs to an argument that it is in global memory.
struct ExpertMatrices {
  const uint8_t* first;
  const int64_t* places;  // [experts] or null
  int64_t bytes;          // of a matrix

  __device__ __forceinline__ const uint8_t* matrix(int expert) const {
    return first + (places ? places[expert] : expert * bytes);
  }
};

}  // namespace rf
