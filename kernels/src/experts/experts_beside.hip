// Experts of one token and a network beside them that all tokens pass, in the same launches: what a
// block multiplies with is of an expert or of that network. For all formats of a group at
// once, as gemv_mixed.hip: the two have formats of their own. Results have the bits of launches for
// each: experts_gemv.hip, gemv_gated.hip and gemv.hip.
#include "rf/experts/choose_gate_up.h"
#include "rf/experts/experts_gemv.h"
#include "rf/gemv/gemv_formats.h"
#include "rf/gemv/gemv_gated.h"
#include "rf/last_block.h"
#include "rf/norms/sum_of_two.h"

namespace rf {

// A product of gate and up with one row, and where it goes.
struct GatedMatrix {
  const uint8_t* weight;
  int format;
  Outputs outputs;
  ActOutput out;
  GatedTeams teams;

  // Makes columns 32 * block to 32 * block + 31 of row `row` of `out`.
  template <class X>
  __device__ __forceinline__ void multiply(X& x, int block, int64_t row) const {
    __shared__ GatedParts<1> parts;
#define RF_CASE(number, Format) \
  case number: gated_sums<Format>(weight, x, outputs, teams, block, parts); break;
    switch (format) { RF_FORMAT_NUMBERS(RF_CASE) }
#undef RF_CASE
    gated_finish(parts, 1, outputs, out, teams.waves(), block, row);
  }
};

// A row whose norm is completed once, however often a block waits for it.
struct OnceNormed : NormedActivations {
  __device__ __forceinline__ void wait() {
    if (factor == 0.0f) NormedActivations::wait();
  }
};

// What a block makes of its tile of down, of experts or of a network that all tokens pass, whose
// first `waves` waves have a share in that.
struct DownMatrix {
  ExpertMatrices matrices;
  int format;
  Activations x;
  ChosenOrAll chosen;
  int waves;
  float* out;

  __device__ __forceinline__ void multiply(const Outputs& outputs, int tile_number) const {
    __shared__ float parts[kGemvThreads / kWave][1][kGroups][kGroupRows];
    const GemvTile<1> tile(tile_number);
    const int wave = uniform(wave_id());
    const auto divided = ExpertWaves::of(chosen.num_chosen, waves, wave);
    float mixed[1][kGroups] = {};
#define RF_CASE(number, Format)                                                       \
  case number:                                                                        \
    mix_experts<Format, 1>(matrices, x, chosen, outputs, 0, tile, divided, mixed[0]); \
    break;
    switch (format) { RF_FORMAT_NUMBERS(RF_CASE) }
#undef RF_CASE
    store_sums(mixed, x, parts[wave]);
    __syncthreads();
    const int i = static_cast<int>(threadIdx.x);
    if (i >= kGroups * kGroupRows) return;
    const int group = i / kGroupRows, row = i % kGroupRows;
    float sum = parts[0][0][group][row];
    for (int other = 1; other < waves; ++other) sum += parts[other][0][group][row];
    const int column = tile.first_row(group) + row;
    if (column < outputs.out_features) out[column] = sum;
  }
};

}  // namespace rf

// What rf_experts_gate_up_<format>_s1 makes of a row and of `num_chosen` experts without biases,
// and what rf_gemv_gated_r1 with `beside_threads` a block makes of another row and the network
// beside them. All matrices are gated. Grid: beside_features / 32 + num_chosen * out_features / 32,
// block 256.
extern "C" __global__ __launch_bounds__(rf::kGemvThreads) void RF_OF_GROUP(
    rf_experts_gate_up_beside)(
    const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,
    const int8_t* __restrict__ q, const rf::ActScale* __restrict__ scale,
    const int32_t* __restrict__ chosen, float* out_f32, rf::half* out_f16, int8_t* out_q,
    rf::ActScale* out_q_scale, int32_t out_q_lo_offset, int64_t expert_bytes, int num_chosen,
    int out_features, int quant_blocks, int activation, int format,
    const uint8_t* __restrict__ beside_weight, const int8_t* __restrict__ beside_q,
    const rf::ActScale* __restrict__ beside_scale, float* beside_out_f32, rf::half* beside_out_f16,
    int8_t* beside_out_q, rf::ActScale* beside_out_q_scale, int32_t beside_out_q_lo_offset,
    int beside_features, int beside_format, int beside_threads) {
  const int beside = beside_features / rf::kActBlock;
  int block = static_cast<int>(blockIdx.x) - beside, pair = 0;
  rf::Activations x{beside_q, beside_scale, 1, 1, quant_blocks};
  rf::GatedMatrix matrix{
      beside_weight,
      beside_format,
      {beside_features, activation},
      {beside_out_f32, beside_out_f16, beside_out_q, beside_out_q_scale, beside_out_q_lo_offset},
      {beside_threads}};
  if (block < 0) {
    block = static_cast<int>(blockIdx.x);
  } else {
    pair = block % num_chosen;
    block /= num_chosen;
    const int expert = chosen[pair];
    if (expert == rf::kElsewhere) return;
    x = {q, scale, 1, 1, quant_blocks};
    matrix = {rf::ExpertMatrices{weight, places, expert_bytes}.matrix(expert),
              format,
              {out_features, activation},
              {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset},
              {static_cast<int>(blockDim.x) / rf::kTeams}};
  }
  matrix.multiply(x, block, pair);
}

// The same of one row for both, whose scale lacks the factor of its norm, and of the experts that
// rf_experts_choose_gate_up_<format> chooses for it, where arguments that are not above are
// explained. The last block writes the choice, of which the others need no weights. Grid: one block
// more, 256 threads, and at least as many as experts.
extern "C" __global__ __launch_bounds__(rf::kGemvThreads) void RF_OF_GROUP(
    rf_experts_choose_gate_up_beside)(
    const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,
    const int8_t* __restrict__ q, const rf::ActScale* __restrict__ scale, float* out_f32,
    rf::half* out_f16, int8_t* out_q, rf::ActScale* out_q_scale, int32_t out_q_lo_offset,
    int64_t expert_bytes, int out_features, int quant_blocks, int activation, int format,
    const uint8_t* RF_EARLY beside_weight, float* beside_out_f32, rf::half* beside_out_f16,
    int8_t* beside_out_q, rf::ActScale* beside_out_q_scale, int32_t beside_out_q_lo_offset,
    int beside_features, int beside_format, int beside_threads, const float* __restrict__ squares,
    float eps, const int64_t* __restrict__ logit_sums, const float* __restrict__ bias,
    const float* __restrict__ selection_bias, const float* __restrict__ weight_scale,
    int32_t* chosen, float* weights, float* shares, int experts, int num_chosen, int function,
    int groups, int kept_groups, int normalised, float factor, int first_own, int num_own,
    int num_shared, int weighs_shared) {
  __shared__ rf::RouteChoice::Lds lds;
  const int beside = beside_features / rf::kActBlock;
  int block = static_cast<int>(blockIdx.x) - beside, pair = 0;
  rf::OnceNormed x{{{q, scale, 1, 1, quant_blocks}, squares, eps}};
  rf::GatedMatrix matrix{
      beside_weight,
      beside_format,
      {beside_features, activation},
      {beside_out_f32, beside_out_f16, beside_out_q, beside_out_q_scale, beside_out_q_lo_offset},
      {beside_threads}};
  if (block < 0) {
    block = static_cast<int>(blockIdx.x);
  } else {
    const rf::RouteRule rule{bias,      selection_bias, weight_scale, experts,         num_chosen,
                             function,  groups,         kept_groups,  normalised != 0, factor,
                             first_own, num_own,        num_shared,   weighs_shared};
    rf::RouteChoice choice(lds, rule);
    rf::wait_for_previous(logit_sums);
    const rf::LogitSum own = static_cast<int>(threadIdx.x) < experts ? logit_sums[threadIdx.x] : 0;
    x.wait();
    const rf::SummedLogits logits{logit_sums, own, x.factor};
    if (blockIdx.x == gridDim.x - 1) {
      choice.run(logits, {chosen, weights, shares});
      return;
    }
    const int pairs = num_chosen + num_shared;
    pair = block % pairs;
    block /= pairs;
    const int expert = rf::uniform(choice.only(logits, pair));
    if (expert == rf::kElsewhere) return;
    matrix = {rf::ExpertMatrices{weight, places, expert_bytes}.matrix(expert),
              format,
              {out_features, activation},
              {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset},
              {static_cast<int>(blockDim.x) / rf::kTeams}};
  }
  matrix.multiply(x, block, pair);
}

// What rf_experts_down_<format>_s1 makes of a token, and what rf_gemv_<beside_format>_r1 with
// `beside_threads` a block makes of the network beside its experts; all without biases. out,
// beside_out: f32 [out_features]. Unless `arrived` (last_block.h) is null, the last block then does
// what rf_add_shared_rms_norm does with them: mixed_weight and what follows are its arguments;
// out_features is at most 16 times the threads of a block. logit_sums: int64 [logits], becomes
// zeros.
// Grid: 2 * stored rows / 16, block as for rf_experts_down_<format>_s1, at most 256, and no less
// than beside_threads.
extern "C" __global__ __launch_bounds__(rf::kGemvThreads) void RF_OF_GROUP(rf_experts_down_beside)(
    const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,
    const int8_t* __restrict__ q, const rf::ActScale* __restrict__ scale,
    const int32_t* __restrict__ chosen, const float* __restrict__ weights, float* out,
    int64_t expert_bytes, int num_chosen, int out_features, int quant_blocks, int format,
    const uint8_t* __restrict__ beside_weight, const int8_t* __restrict__ beside_q,
    const rf::ActScale* __restrict__ beside_scale, float* beside_out, int beside_quant_blocks,
    int beside_format, int beside_threads, int64_t* logit_sums, int logits, uint32_t* arrived,
    const float* __restrict__ mixed_weight, const float* __restrict__ shared_weight,
    const float* __restrict__ shares, float* residual, const float* __restrict__ post_weight,
    const float* __restrict__ scale_of_sum, const float* __restrict__ norm_weight,
    float* normed_f32, rf::half* normed_f16, int8_t* normed_q, rf::ActScale* normed_q_scale,
    int32_t normed_q_lo_offset, float eps) {
  rf::clear_logits(logit_sums, logits);
  const rf::Outputs outputs{out_features, rf::kNotGated};
  const int tiles = outputs.stored_rows() / (rf::kGroups * rf::kGroupRows);
  int tile = static_cast<int>(blockIdx.x);
  rf::DownMatrix down{{beside_weight, nullptr, 0},
                      beside_format,
                      {beside_q, beside_scale, 1, 1, beside_quant_blocks},
                      {{nullptr, nullptr, 1}},
                      beside_threads / rf::kWave,
                      beside_out};
  if (tile >= tiles) {
    tile -= tiles;
    down = {{weight, places, expert_bytes},           format,
            {q, scale, num_chosen, 1, quant_blocks},  {{chosen, weights, num_chosen}},
            static_cast<int>(blockDim.x) / rf::kWave, out};
  }
  down.multiply(outputs, tile);
  if (!arrived || !rf::is_last_block(arrived, gridDim.x)) return;
  const rf::SumOfTwo sum{{out, mixed_weight}, {beside_out, shared_weight}, shares};
  sum.add_and_norm(
      0, residual, post_weight, scale_of_sum,
      {norm_weight, {normed_f32, normed_f16, normed_q, normed_q_scale, normed_q_lo_offset}},
      out_features, eps);
}
