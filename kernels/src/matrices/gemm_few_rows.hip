// y = x W^T for up to 64 rows of x, as gemm.hip, with the matrix instructions of Hopper GPUs. Each
// number of rows has a kernel: one that has several forms runs only the first in its code at full
// speed (docs/benchmarks/products.md). Compiled once per quantised format, for targets that have
// those instructions.
#include "rf/gemm/gemm_few_rows.h"
#include "rf/gemm/ungrouped.h"

#if RF_WARPGROUPS
#define RF_BOUNDS __launch_bounds__(rf::kFewRowsWaves* rf::kWave, rf::kFewRowsBlocks)
#define RF_RUN(Format, kRows)                    \
  using Gemm = rf::FewRowsOf<rf::Format, kRows>; \
  RF_LARGE_LDS(Gemm::Lds, lds);                  \
  rf::prepare<rf::Format>();                     \
  Gemm::run(arguments, *lds)
#else
#define RF_BOUNDS __launch_bounds__(256)
#define RF_RUN(Format, kRows) static_cast<void>(arguments)
#endif

// As rf_gemm_*, without groups, for up to kRows rows. Grid: (1, ceil(stored rows / 128), splits),
// block: the most threads that the kernel is compiled for.
#define RF_GEMM_FEW_ROWS(name, Format, kRows) \
  RF_UNGROUPED_GEMM(rf_gemm_##name##_r##kRows, kRows, RF_BOUNDS, RF_RUN(Format, kRows))
#define RF_GEMM_FEW_ROWS_OF(name, Format, ...) \
  RF_GEMM_FEW_ROWS(name, Format, 16)           \
  RF_GEMM_FEW_ROWS(name, Format, 32)           \
  RF_GEMM_FEW_ROWS(name, Format, 64)
RF_FORMATS(RF_GEMM_FEW_ROWS_OF)
