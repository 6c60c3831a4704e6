// y = x W^T for 65 to 128 rows of x, as gemm_wide.hip, in blocks of which two share a
// multiprocessor: for formats of which that was measured to be faster. Compiled once for each of
// these.
#include "rf/gemm/gemm_warpgroup.h"
#include "rf/gemm/ungrouped.h"

// As rf_gemm_*, without groups, for an even number of quant blocks.
#define RF_GEMM_PAIRED(name, Format, ...) \
  RF_UNGROUPED_GEMM(rf_gemm_##name##_r128, Format, 128, rf::WarpgroupGemm<rf::Format, 128>)
RF_FORMATS(RF_GEMM_PAIRED)
