// y = x W^T for up to 64 rows of x, as gemm.hip, with the matrix instructions of Hopper GPUs. Each
// number of rows has a kernel: one that has several forms runs only the first in its code at full
// speed (docs/benchmarks/products.md). Compiled once per quantised format, for targets that have
// those instructions.
#include "rf/gemm/gemm_few_rows.h"
#include "rf/gemm/ungrouped.h"

// As rf_gemm_*, without groups, for up to kRows rows.
#define RF_GEMM_FEW_ROWS(name, Format, kRows) \
  RF_UNGROUPED_GEMM(rf_gemm_##name##_r##kRows, Format, kRows, rf::FewRowsOf<rf::Format, kRows>)
#define RF_GEMM_FEW_ROWS_OF(name, Format, ...) \
  RF_GEMM_FEW_ROWS(name, Format, 16)           \
  RF_GEMM_FEW_ROWS(name, Format, 32)           \
  RF_GEMM_FEW_ROWS(name, Format, 64)
RF_FORMATS(RF_GEMM_FEW_ROWS_OF)
