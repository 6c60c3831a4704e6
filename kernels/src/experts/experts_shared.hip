// Experts for some tokens, with quantised matrices: pairs with the same expert share what is read
// of it (experts_shared.h). For targets whose matrix instructions have eight columns.
#include "rf/experts/experts_shared.h"

namespace rf {

template <class Format, class Matrix = MmaInt8>
__device__ __forceinline__ void shared_gate_up(const ExpertMatrices& experts, const int8_t* q,
                                               const ActScale* scale, int rows, int quant_blocks,
                                               const Chosen& chosen, const GateUpOutputs& to) {
  if constexpr (!kSharesExperts) {
    __builtin_trap();  // not to be launched where there are no such instructions
  } else {
    using Product = SharedProduct<Format, kTeams, Matrix>;
    __shared__ typename Product::Lds lds;
    alignas(16) __shared__ float columns[kSharedPairs][kActBlock];
    const int pair = static_cast<int>(blockIdx.x);
    const int expert = chosen.expert[pair];
    if (expert == kElsewhere) return;
    const int sharers =
        find_sharers(chosen.expert, rows * chosen.num_chosen, pair, expert, lds.sharers);
    if (sharers == 0) return;
    const int tile = static_cast<int>(blockIdx.y) * kTeams + Product::tile();
    const int first_row = tile / 2 * kRowAlign + tile % 2 * kGroupRows;
    Product::run(
        lds, sharers, experts.matrix(expert), to.outputs.stored_rows(), quant_blocks, q, scale,
        [&](int r) { return first_row + r * kGateRows + Matrix::lane_row(0); },
        [&](int i) { return i / chosen.num_chosen; });

    // A wave for each sharer, and a lane for each column.
    const int features = to.outputs.out_features;
    const int64_t biases = static_cast<int64_t>(lds.sharers.expert) * features;
    const int lane = lane_id();
    const int row = lane / kGroupRows * 16 + lane % kGroupRows;
    const int four = lane % kActLanes * 4;
    const int first_column = static_cast<int>(blockIdx.y) * kActBlock;
    for (int s = wave_id(); s < lds.sharers.count; s += kSharedThreads / kWave) {
      float gate = Product::total(lds, s, row);
      float up = Product::total(lds, s, row + kGroupRows);
      if (to.gate_bias) {
        gate += to.gate_bias[biases + first_column + lane];
        up += to.up_bias[biases + first_column + lane];
      }
      columns[s][lane] = gated(gate, up, to.outputs.activation);
      wave_sync();
      const int64_t of_pair = static_cast<int64_t>(lds.sharers.pair[s]) * features;
      to.out.store(of_pair + first_column + four, load16(columns[s] + four), lane < kActLanes);
    }
  }
}

template <class Format, int kRows, class Matrix = MmaInt8>
__device__ __forceinline__ void shared_down(const ExpertMatrices& experts, const int8_t* q,
                                            const ActScale* scale, int pairs, int quant_blocks,
                                            const int32_t* chosen, const float* bias, float* out,
                                            int out_features) {
  if constexpr (!kSharesExperts) {
    __builtin_trap();
  } else {
    using Product = SharedProduct<Format, kRows / 16, Matrix>;
    __shared__ typename Product::Lds lds;
    const int pair = static_cast<int>(blockIdx.x);
    const int expert = chosen[pair];
    if (expert == kElsewhere) return;
    const int sharers = find_sharers(chosen, pairs, pair, expert, lds.sharers);
    if (sharers == 0) return;
    const int first = static_cast<int>(blockIdx.y) * kRows;
    const int last_row = Outputs{out_features, kNotGated}.stored_rows() - 1;
    Product::run(
        lds, sharers, experts.matrix(expert), last_row + 1, quant_blocks, q, scale,
        // Behind the last column nothing is stored, and what is read there is not used.
        [&](int r) { return min(first + Product::tile() * 16 + Matrix::lane_row(r), last_row); },
        [](int i) { return i; });
    const int64_t biases = static_cast<int64_t>(lds.sharers.expert) * out_features;
    for (int item = threadIdx.x; item < lds.sharers.count * kRows; item += kSharedThreads) {
      const int row = item % kRows;
      const int s = item / kRows;
      const int column = first + row;
      if (column >= out_features) continue;
      float value = Product::total(lds, s, row);
      if (bias) value += bias[biases + column];
      out[static_cast<int64_t>(lds.sharers.pair[s]) * out_features + column] = value;
    }
  }
}

}  // namespace rf

// As rf_experts_gate_up_<name>_s1, of a gated layer whose rows have at least 4 and at most
// kMostSharedBlocks quant blocks, with block 256.
#define RF_SHARED_GATE_UP(name, Format)                                                          \
  extern "C" __global__ __launch_bounds__(rf::kSharedThreads, 4) void                            \
      rf_experts_gate_up_shared_##name(                                                          \
          const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,                \
          const int8_t* __restrict__ q, const rf::ActScale* __restrict__ scale,                  \
          const int32_t* __restrict__ chosen, const float* __restrict__ gate_bias,               \
          const float* __restrict__ up_bias, float* out_f32, rf::half* out_f16, int8_t* out_q,   \
          rf::ActScale* out_q_scale, int32_t out_q_lo_offset, int64_t expert_bytes, int rows,    \
          int num_chosen, int out_features, int quant_blocks, int activation) {                  \
    rf::shared_gate_up<rf::Format>({weight, places, expert_bytes}, q, scale, rows, quant_blocks, \
                                   {chosen, nullptr, num_chosen},                                \
                                   {{out_features, activation},                                  \
                                    gate_bias,                                                   \
                                    up_bias,                                                     \
                                    {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}});   \
  }

// weight, places, q, scale, chosen, bias: as of rf_experts_down_<name>_s1, of rows as above. out:
// f32 [pairs, out_features], the product of each pair, with its bias; where chosen is kElsewhere,
// it stays. Grid: (pairs, ceil(out_features / rows of the name)), block 256.
#define RF_SHARED_DOWN(name, Format, kRows)                                                        \
  extern "C" __global__ __launch_bounds__(                                                         \
      rf::kSharedThreads,                                                                          \
      4) void rf_experts_down_shared_##name##_m##kRows(const uint8_t* __restrict__ weight,         \
                                                       const int64_t* __restrict__ places,         \
                                                       const int8_t* __restrict__ q,               \
                                                       const rf::ActScale* __restrict__ scale,     \
                                                       const int32_t* __restrict__ chosen,         \
                                                       const float* __restrict__ bias, float* out, \
                                                       int64_t expert_bytes, int pairs,            \
                                                       int out_features, int quant_blocks) {       \
    rf::shared_down<rf::Format, kRows>({weight, places, expert_bytes}, q, scale, pairs,            \
                                       quant_blocks, chosen, bias, out, out_features);             \
  }

#define RF_SHARED(name, Format, ...) \
  RF_SHARED_GATE_UP(name, Format)    \
  RF_SHARED_DOWN(name, Format, 32)   \
  RF_SHARED_DOWN(name, Format, 64)
RF_FORMATS(RF_SHARED)
