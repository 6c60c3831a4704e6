// What products of few rows of int8 take, however they are made.
#pragma once

#include "rf/linear.h"
#include "rf/norms/deferred_rows.h"

namespace rf {

struct Int8Arguments {
  const uint8_t* weight;
  const int8_t* q;
  const ActScale* scale;
  DeferredNorm norm;
  int rows;
  int slices;
  int quant_blocks;
  Outputs outputs;
  Result result;

  __device__ __forceinline__ int x_rows() const { return rows * slices; }
};

}  // namespace rf
