// y = x W^T for up to 64 rows of x and two matrices, the second one in Q6_K: files that are mostly
// in another type have values so in half of their layers. Otherwise as gemm_few_rows.hip. Compiled
// once for each format that occurs beside Q6_K.
#include "rf/formats/q6_k.h"
#include "rf/gemm/gemm_few_rows.h"
#include "rf/gemm/ungrouped.h"

namespace rf {

// Of both matrices.
struct BesideArguments {
  GemmArguments first, second;
};

#if RF_WARPGROUPS
// Multiplies with tiles of the first matrix, and behind them with those of the second.
template <class First, class Second>
struct BesideGemm {
  static constexpr int kThreads = First::kThreads, kBlocks = First::kBlocks;
  static_assert(Second::kThreads == kThreads && Second::kBlocks == kBlocks);

  using Lds = LdsOf<First, Second>;

  static __device__ __forceinline__ void run(const BesideArguments& arguments, Lds& lds) {
    const auto& [first, second] = arguments;
    const int features = first.outputs.out_features;
    const int columns = features + second.outputs.out_features;
    const int tiles = (features + kTileColumns - 1) / kTileColumns;
    const int tile = blockIdx.y;
    if (tile < tiles) {
      First::run(first, lds.own, tile, columns);
    } else {
      Second::run(second, lds.others.own, tile - tiles, columns);
    }
  }
};
#endif

}  // namespace rf

// partial: f32 [splits, rows, first_features + second_features]: the columns of the second matrix
// follow those of the first. Both have as many stored rows as features. The other arguments are
// those of rf_gemm_*, for up to kRows rows. Grid: (1, ceil(first_features / 128) +
// ceil(second_features / 128), splits), block: the most threads that the kernel is compiled for.
#define RF_BESIDE_GEMM(Format, kRows) \
  rf::BesideGemm<rf::FewRowsOf<rf::Format, kRows>, rf::FewRowsOf<rf::Q6_K, kRows>>
#define RF_GEMM_BESIDE(name, Format, kRows)                                              \
  extern "C" __global__ RF_UNGROUPED_BOUNDS(RF_BESIDE_GEMM(Format, kRows)) void          \
      rf_gemm_beside_q6_k_##name##_r##kRows(                                             \
          const uint8_t* __restrict__ weight, const uint8_t* __restrict__ second_weight, \
          const rf::half* __restrict__ x, float* partial, int rows, int first_features,  \
          int second_features, int quant_blocks, int split_quant_blocks) {               \
    const auto of = [&](const uint8_t* own_weight, int features, float* own_partial) {   \
      return rf::GemmArguments{own_weight,                                               \
                               x,                                                        \
                               nullptr,                                                  \
                               0,                                                        \
                               rows,                                                     \
                               quant_blocks,                                             \
                               {features, rf::kNotGated},                                \
                               nullptr,                                                  \
                               {},                                                       \
                               own_partial,                                              \
                               split_quant_blocks};                                      \
    };                                                                                   \
    const rf::BesideArguments arguments{                                                 \
        of(weight, first_features, partial),                                             \
        of(second_weight, second_features, partial + first_features)};                   \
    RF_UNGROUPED_RUN(Format, RF_BESIDE_GEMM(Format, kRows));                             \
  }
#define RF_GEMM_BESIDE_OF(name, Format, ...) \
  RF_GEMM_BESIDE(name, Format, 16)           \
  RF_GEMM_BESIDE(name, Format, 32)           \
  RF_GEMM_BESIDE(name, Format, 64)
RF_FORMATS(RF_GEMM_BESIDE_OF)
