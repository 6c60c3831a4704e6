// Experts of a token as experts_gemv.hip has them, in launches that do what lies between: gate and
// up complete the norm of the row and choose the experts by the router's logits; down adds its sum
// to the residual, whose norm it leaves for what reads it (deferred_norm.h).
#include "rf/experts/choose_gate_up.h"
#include "rf/gemv/gemv_deferred.h"

namespace rf {

// Of a block for two tiles, at most. Super-blocks take more registers than 1,024 threads leave.
template <class Format>
inline constexpr int kAddDownThreads =
    kDeferredTiles * (Format::Block::kWeights > kQuantBlock ? kGemvThreads : kDownThreads);

// Whether the columns are asked for before the product: not where registers of gfx906 are too few.
#if RF_AMD
inline constexpr bool kAsksFirst = false;
#else
inline constexpr bool kAsksFirst = true;
#endif

// Half of the block has a tile each, and its waves divide the experts as those of a block do there.
template <class Format>
__device__ __forceinline__ void add_down(const ExpertMatrices& experts, const Activations& x,
                                         const Chosen& chosen, const DownOutputs& to,
                                         DeferredColumns& columns) {
  __shared__ DeferredParts<kAddDownThreads<Format> / kDeferredTiles> parts;
  const int waves = static_cast<int>(blockDim.x) / (kWave * kDeferredTiles);
  const int own = uniform(wave_id() / waves);
  const GemvTile<1> tile(static_cast<int>(blockIdx.x) * kDeferredTiles + own);
  if constexpr (kAsksFirst) columns.begin();
  float mixed[1][kGroups] = {};
  mix_experts<Format, 1>(experts, x, chosen, to.outputs, 0, tile,
                         ExpertWaves::of(chosen.num_chosen, waves, wave_id() - own * waves),
                         mixed[0]);
  if constexpr (!kAsksFirst) columns.begin();
  let_next_begin();
  store_sums(mixed, x, parts.sums[own][wave_id() - own * waves]);
  columns.finish(parts, waves,
                 [&](int column, float sum) { return to.biased(column, sum, chosen, 0); });
}

// How many blocks are to run at once on a multiprocessor of NVIDIA: about as many as a token has
// for each. Not told, its assembler leaves formats of one quant block so few registers that more
// would run, and few loads are on their way.
inline constexpr int kChooseBlocks = 3;

}  // namespace rf

// What rf_experts_down_<name>_s1 makes of one token is added to the residual, as in
// rf_gemv_deferred, where residual and what follows are explained. logit_sums: int64 [logits],
// becomes zeros. Grid: out_features / 32, block twice that of rf_experts_down_<name>_s1, as
// far as the kernel is compiled for that.
#define RF_ADD_DOWN(name, Format, ...)                                                            \
  extern "C" __global__                                                                           \
  __launch_bounds__(rf::kAddDownThreads<rf::Format>) void rf_experts_add_down_##name(             \
      const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,                     \
      const int8_t* __restrict__ q, const rf::ActScale* __restrict__ scale,                       \
      const int32_t* __restrict__ chosen, const float* __restrict__ weights,                      \
      const float* __restrict__ bias, int64_t expert_bytes, int num_chosen, int out_features,     \
      int quant_blocks, float* residual, const float* __restrict__ norm_weight, int8_t* normed_q, \
      rf::ActScale* normed_q_scale, float* squares, int64_t* logit_sums, int logits) {            \
    rf::clear_logits(logit_sums, logits);                                                         \
    rf::DeferredColumns columns{residual, norm_weight, normed_q, normed_q_scale, squares};        \
    rf::add_down<rf::Format>(                                                                     \
        {weight, places, expert_bytes}, {q, scale, num_chosen, 1, quant_blocks},                  \
        {chosen, weights, num_chosen}, {{out_features, rf::kNotGated}, bias, nullptr}, columns);  \
  }

#define RF_EXPERTS(name, Format, ...)                                            \
  RF_CHOOSE_GATE_UP(rf_experts_choose_gate_up_##name, Format, rf::kChooseBlocks) \
  RF_ADD_DOWN(name, Format, ...)
RF_FORMATS(RF_EXPERTS)
