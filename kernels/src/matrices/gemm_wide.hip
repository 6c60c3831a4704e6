// y = x W^T for very many rows of x, as gemm.hip, with the matrix instructions of Hopper GPUs. Each
// size of tiles has a kernel, as gemm_few_rows.hip says. Compiled once per quantised format, for
// targets that have those instructions.
#include "rf/gemm/gemm_warpgroup.h"
#include "rf/gemm/ungrouped.h"

// As rf_gemm_*, without groups, for an even number of quant blocks.
#define RF_GEMM_WIDE(name, Format, kTileRows)                              \
  RF_UNGROUPED_GEMM(rf_gemm_wide_##name##_r##kTileRows, Format, kTileRows, \
                    rf::WarpgroupGemm<rf::Format, kTileRows>)
#define RF_GEMM_WIDE_OF(name, Format, ...) \
  RF_GEMM_WIDE(name, Format, 256)          \
  RF_GEMM_WIDE(name, Format, 272)
RF_FORMATS(RF_GEMM_WIDE_OF)
