// Experts of few tokens as experts_gemv.hip has them, in launches that do what lies between: gate
// and up choose the experts by the router's logits, and may complete the norm of one row; down adds
// its sum to the residual, whose norm it leaves for what reads it (deferred_norm.h).
#include "rf/experts/experts_gemv.h"
#include "rf/experts/route.h"
#include "rf/gemv/deferred_norm.h"
#include "rf/gemv/gemv_deferred.h"

namespace rf {

// Each block chooses for itself: it would wait longer for one that does.
template <class Format>
__device__ __forceinline__ void choose_gate_up(const ExpertMatrices& experts, NormedActivations& x,
                                               const RouteRule& rule, const float* logits,
                                               int32_t* chosen, float* weights,
                                               const GateUpOutputs& to) {
  __shared__ RouteChoice::Lds lds;
  RouteChoice choice(lds, rule);
  const int64_t pair = blockIdx.x;
  const int num_pairs = rule.num_pairs();
  const int64_t token = pair / num_pairs;
  const int rank = static_cast<int>(pair - token * num_pairs);
  logits += token * rule.num_logits();
  const float logit = choice.own_logit(logits);
  if (x.squares) x.find_factor();
  choice.choose<false>(logit);
  const int expert = uniform(choice.expert(rank));
  if (expert != kElsewhere) {
    const Outputs stored = to.stored();
    const GateUpTile tile(static_cast<int>(blockIdx.y), stored);
    Format rows[kGroups];
    expert_rows(experts, expert, stored, x.quant_blocks, tile, rows);
    const int first_quant_blocks[1] = {static_cast<int>(token) * x.quant_blocks};
    float sums[1][kGroups] = {};
    gemv_dot(rows, x, first_quant_blocks, tile.first_piece(), tile.piece_step(), sums,
             [] { prepare<Format>(); });
    if (x.rows == 1) let_next_begin();
    to.finish(tile, sums[0], expert, pair);
  }
  // Of a block that follows those with which most multiprocessors begin.
  if (rank == 0 && blockIdx.y == gridDim.y * 2 / 3) {
    choice.weigh(logits);
    choice.store(chosen + token * num_pairs, weights + token * num_pairs, logits);
  }
}

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

// As rf_experts_gate_up_<name>_s1, of few rows, with what rf_route_choose makes of their logits,
// f32 [rows, experts + weighs_shared]: chosen, weights and what is not named here are as there.
// scale: where squares is not null, there is one row and this lacks the factor of its norm
// (deferred_norm.h). Grid: as there, block 256, and at least as many as experts.
#define RF_CHOOSE_GATE_UP(name, Format, ...)                                                       \
  extern "C" __global__ __launch_bounds__(rf::kGemvThreads, rf::kChooseBlocks) void                \
      rf_experts_choose_gate_up_##name(                                                            \
          const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,                  \
          const int8_t* __restrict__ q, const rf::ActScale* __restrict__ scale,                    \
          const float* __restrict__ gate_bias, const float* __restrict__ up_bias, float* out_f32,  \
          rf::half* out_f16, int8_t* out_q, rf::ActScale* out_q_scale, int32_t out_q_lo_offset,    \
          int64_t expert_bytes, int rows, int out_features, int quant_blocks, int activation,      \
          const float* __restrict__ squares, float eps, const float* __restrict__ logits,          \
          const float* __restrict__ bias, const float* __restrict__ selection_bias,                \
          const float* __restrict__ weight_scale, int32_t* chosen, float* weights, int experts,    \
          int num_chosen, int function, int groups, int kept_groups, int normalised, float factor, \
          int first_own, int num_own, int num_shared, int weighs_shared) {                         \
    rf::NormedActivations x{{q, scale, rows, 1, quant_blocks}, squares, eps, 1.0f};                \
    const rf::RouteRule rule{bias,      selection_bias, weight_scale, experts,         num_chosen, \
                             function,  groups,         kept_groups,  normalised != 0, factor,     \
                             first_own, num_own,        num_shared,   weighs_shared};              \
    rf::choose_gate_up<rf::Format>({weight, places, expert_bytes}, x, rule, logits, chosen,        \
                                   weights,                                                        \
                                   {{out_features, activation},                                    \
                                    gate_bias,                                                     \
                                    up_bias,                                                       \
                                    {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}});     \
  }

// What rf_experts_down_<name>_s1 makes of one token is added to the residual, as in
// rf_gemv_deferred, where residual and what follows are explained. Grid: out_features / 32, block
// twice that of rf_experts_down_<name>_s1, as far as the kernel is compiled for that.
#define RF_ADD_DOWN(name, Format, ...)                                                            \
  extern "C" __global__                                                                           \
  __launch_bounds__(rf::kAddDownThreads<rf::Format>) void rf_experts_add_down_##name(             \
      const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,                     \
      const int8_t* __restrict__ q, const rf::ActScale* __restrict__ scale,                       \
      const int32_t* __restrict__ chosen, const float* __restrict__ weights,                      \
      const float* __restrict__ bias, int64_t expert_bytes, int num_chosen, int out_features,     \
      int quant_blocks, float* residual, const float* __restrict__ norm_weight, int8_t* normed_q, \
      rf::ActScale* normed_q_scale, float* squares) {                                             \
    rf::DeferredColumns columns{residual, norm_weight, normed_q, normed_q_scale, squares};        \
    rf::add_down<rf::Format>(                                                                     \
        {weight, places, expert_bytes}, {q, scale, num_chosen, 1, quant_blocks},                  \
        {chosen, weights, num_chosen}, {{out_features, rf::kNotGated}, bias, nullptr}, columns);  \
  }

#define RF_EXPERTS(name, Format, ...)  \
  RF_CHOOSE_GATE_UP(name, Format, ...) \
  RF_ADD_DOWN(name, Format, ...)
RF_FORMATS(RF_EXPERTS)
