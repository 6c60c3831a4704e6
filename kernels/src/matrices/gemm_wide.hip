// y = x W^T for very many rows of x, as gemm.hip, with the matrix instructions of Hopper GPUs. Each
// size of tiles has a kernel, as gemm_few_rows.hip says. Compiled once per quantised format, for
// targets that have those instructions.
#include "rf/gemm/gemm_warpgroup.h"

#define RF_GEMM_WIDE(name, Format, ...)                      \
  RF_WARPGROUP_GEMM(rf_gemm_wide_##name##_r256, Format, 256) \
  RF_WARPGROUP_GEMM(rf_gemm_wide_##name##_r272, Format, 272)
RF_FORMATS(RF_GEMM_WIDE)
