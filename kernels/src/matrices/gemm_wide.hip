// y = x W^T for very many rows of x, as gemm.hip, with the matrix instructions of Hopper GPUs.
// Compiled once per quantised format, for targets that have them.
#include "rf/gemm/gemm_warpgroup.h"
#include "rf/gemm/ungrouped.h"

#if RF_WARPGROUPS
#define RF_RUN(Format)                   \
  using Gemm = rf::WideGemm<rf::Format>; \
  RF_LARGE_LDS(Gemm::Lds, lds);          \
  Gemm::run(arguments, *lds)
#else
#define RF_RUN(Format) static_cast<void>(arguments)
#endif

// As rf_gemm_*, without groups, for an even number of quant blocks. Grid: (ceil(rows / 272),
// ceil(stored rows / 128), splits), block: the most threads that the kernel is compiled for.
#define RF_GEMM_WIDE(name, Format, ...) \
  RF_UNGROUPED_GEMM(rf_gemm_wide_##name, __launch_bounds__(256), RF_RUN(Format))
RF_FORMATS(RF_GEMM_WIDE)
