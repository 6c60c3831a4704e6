// y = x W^T for 65 to 128 rows of x, as gemm_wide.hip, in blocks of which two share a
// multiprocessor: for formats of which that was measured to be faster. Compiled once for each of
// these.
#include "rf/gemm/gemm_warpgroup.h"

#define RF_GEMM_PAIRED(name, Format, ...) RF_WARPGROUP_GEMM(rf_gemm_##name##_r128, Format, 128)
RF_FORMATS(RF_GEMM_PAIRED)
