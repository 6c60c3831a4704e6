// Gate and up of experts of many tokens, some rows each: see experts_gated_gemm.h. Compiled once
// per format whose weights come through LDS, for targets with matrix instructions that four waves
// issue together.
#include "rf/experts/experts_gated_gemm.h"

#if RF_WARPGROUPS
namespace rf {

template <class Format>
__device__ __forceinline__ void experts_gated_gemm(GemmArguments arguments, const Groups& groups,
                                                   int multiprocessors) {
  TileShare share;
  if (!begin_share(arguments, groups, multiprocessors, share)) return;
  using Lds = LdsOf<ExpertsGatedGemm<Format, 16>, ExpertsGatedGemm<Format, 32>,
                    ExpertsGatedGemm<Format, kGatedRows>>;
  RF_LARGE_LDS(Lds, lds);
  multiply_rows(arguments, *lds, share);
}

}  // namespace rf
#define RF_RUN(Format) rf::experts_gated_gemm<rf::Format>(arguments, groups, multiprocessors)
#define RF_BOUNDS __launch_bounds__(rf::kExpertsGemmWaves* rf::kWave, 1)
#else
#define RF_RUN(Format) \
  static_cast<void>(arguments), static_cast<void>(groups), static_cast<void>(multiprocessors)
#define RF_BOUNDS
#endif

// What rf_gemm_<name>_m64 makes of the same arguments with tiles of up to kGatedRows rows, in
// out_half, of a gated layer that has up to kGatedQuantBlocks quant blocks. Grid: as many
// blocks as tiles, and kShareRounds for each multiprocessor; block 512.
#define RF_EXPERTS_GATED_GEMM(name, Format, ...)                                   \
  extern "C" __global__ RF_BOUNDS void rf_experts_gated_gemm_##name(               \
      const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,      \
      const rf::half* __restrict__ x, const rf::GroupTile* __restrict__ tiles,     \
      const int32_t* __restrict__ sources, const float* __restrict__ bias,         \
      const float* __restrict__ up_bias, rf::half* out_half, int64_t expert_bytes, \
      int out_features, int quant_blocks, int activation, int multiprocessors) {   \
    const rf::GemmArguments arguments{weight,                                      \
                                      x,                                           \
                                      sources,                                     \
                                      0,                                           \
                                      0,                                           \
                                      quant_blocks,                                \
                                      {out_features, activation},                  \
                                      up_bias,                                     \
                                      {bias, nullptr, out_half},                   \
                                      nullptr,                                     \
                                      quant_blocks};                               \
    const rf::Groups groups{tiles, {weight, places, expert_bytes}};                \
    RF_RUN(Format);                                                                \
  }
RF_FORMATS(RF_EXPERTS_GATED_GEMM)
