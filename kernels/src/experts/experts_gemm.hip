// Down of experts of many tokens, a few rows each: see experts_gemm.h. Compiled once per format
// whose weights come through LDS, for targets with matrix instructions that four waves issue
// together.
#include "rf/experts/experts_gemm.h"

#if RF_WARPGROUPS
namespace rf {

template <class Format>
__device__ __forceinline__ void experts_gemm(GemmArguments arguments, const Groups& groups,
                                             int multiprocessors) {
  TileShare share;
  if (!begin_share(arguments, groups, multiprocessors, share)) return;
  using Lds = LdsOf<ExpertsGemm<Format, 8>, ExpertsGemm<Format, 16>, ExpertsGemm<Format, 32>,
                    ExpertsGemm<Format, 48>, ExpertsGemm<Format, 64>>;
  RF_LARGE_LDS(Lds, lds);
  multiply_rows(arguments, *lds, share);
}

}  // namespace rf
#define RF_RUN(Format) rf::experts_gemm<rf::Format>(arguments, groups, multiprocessors)
#define RF_BOUNDS __launch_bounds__(rf::kExpertsGemmWaves* rf::kWave, 1)
#else
#define RF_RUN(Format) \
  static_cast<void>(arguments), static_cast<void>(groups), static_cast<void>(multiprocessors)
#define RF_BOUNDS
#endif

// What rf_gemm_<name>_m64 makes of the same arguments with tiles, in out, of a layer that is not
// gated and has up to kShortQuantBlocks quant blocks. Grid: as many blocks as
// tiles, and kShareRounds for each multiprocessor; block 512.
#define RF_EXPERTS_GEMM(name, Format, ...)                                             \
  extern "C" __global__ RF_BOUNDS void rf_experts_gemm_##name(                         \
      const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,          \
      const rf::half* __restrict__ x, const rf::GroupTile* __restrict__ tiles,         \
      const int32_t* __restrict__ sources, const float* __restrict__ bias, float* out, \
      int64_t expert_bytes, int out_features, int quant_blocks, int multiprocessors) { \
    const rf::GemmArguments arguments{weight,                                          \
                                      x,                                               \
                                      sources,                                         \
                                      0,                                               \
                                      0,                                               \
                                      quant_blocks,                                    \
                                      {out_features, rf::kNotGated},                   \
                                      nullptr,                                         \
                                      {bias, out, nullptr},                            \
                                      nullptr,                                         \
                                      quant_blocks};                                   \
    const rf::Groups groups{tiles, {weight, places, expert_bytes}};                    \
    RF_RUN(Format);                                                                    \
  }
RF_FORMATS(RF_EXPERTS_GEMM)
