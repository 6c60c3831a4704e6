// What the kernels of experts share (Shazeer et al. 2017): where the matrices of each expert lie,
// and which experts a token goes to.
//
// The matrices of all experts of a layer are one array, one after the other, or wherever a table
// says: each is a matrix of weights.h. A pair is a token and one of its experts: pair t *
// num_chosen + i is token t with chosen[t][i].
#pragma once

#include "rf/activations/act_output.h"
#include "rf/experts/expert_matrices.h"
#include "rf/gemv/gemv_tile.h"

namespace rf {

inline constexpr int kRouteSoftmax = 0;
inline constexpr int kRouteSigmoid = 1;
inline constexpr int kRouteSoftmaxOfChosen = 2;
inline constexpr int kMostExperts = 512;  // of a layer
// In the place of an expert that another device has: nothing is computed for such a pair.
inline constexpr int kElsewhere = -1;

// Where the experts of tokens are, and what they count.
struct Chosen {
  const int32_t* expert;  // [tokens, num_chosen], of those that this device has, or kElsewhere
  const float* weight;    // [tokens, num_chosen]
  int num_chosen;

  __device__ __forceinline__ int expert_of(int64_t pair) const { return expert[pair]; }
  __device__ __forceinline__ float weight_of(int64_t pair) const { return weight[pair]; }
};

// The same, or where `expert` is null, a matrix that every token passes.
struct ChosenOrAll : Chosen {
  __device__ __forceinline__ int expert_of(int64_t pair) const { return expert ? expert[pair] : 0; }
  __device__ __forceinline__ float weight_of(int64_t pair) const {
    return expert ? weight[pair] : 1.0f;
  }
};

// The rows of a lane in the matrix of an expert.
template <class Format, class Tile>
__device__ __forceinline__ void expert_rows(const ExpertMatrices& experts, int expert,
                                            const Outputs& outputs, int quant_blocks,
                                            const Tile& tile, Format (&rows)[kGroups]) {
  const uint8_t* matrix = experts.matrix(expert);
  for (int j = 0; j < kGroups; ++j) {
    rows[j] = Format::of(Planes(matrix, outputs.stored_rows(), tile.row(j)), quant_blocks);
  }
}

inline constexpr int kGateUpThreads = 512;  // at most; a multiple of 256
// At most, for down. Not on AMD, where the registers of some chips do not suffice for all formats.
#if RF_AMD
inline constexpr int kDownThreads = kGemvThreads;
#else
inline constexpr int kDownThreads = 512;
#endif
inline constexpr int kTeams = 4;  // of a block

// How a block multiplies with gate and up of a pair: four teams of threads have a tile each, and
// make 32 columns together, a block of the activation that down is multiplied with. Of a matrix
// that is not gated they make 64, two blocks: a lane's second row is of another column.
class GateUpTile {
 public:
  __device__ __forceinline__ GateUpTile(int block, const Outputs& stored)
      : block_(block),
        tile_(block * kTeams + static_cast<int>(threadIdx.x) / team_size()),
        is_gated_(stored.activation != kNotGated),
        last_row_(stored.stored_rows() - 1) {}

  // Behind the last column nothing is stored, and what is read there is not used.
  __device__ __forceinline__ int row(int j) const {
    return is_gated_ ? tile_.row(j) : min(tile_.row(j), last_row_);
  }
  static __device__ __forceinline__ int first_piece() {
    return static_cast<int>(threadIdx.x) % team_size() / kGroupRows;
  }
  static __device__ __forceinline__ int piece_step() { return team_size() / kGroupRows; }

  // Adds up what the lanes found, and has value(column, gate, up) written to row `row` of `out`, or
  // squared_relu of each sum if the matrix is not gated.
  template <class Value>
  __device__ __forceinline__ void finish(const float (&sums)[kGroups], const ActOutput& out,
                                         int64_t row, int out_features, const Value& value) const {
    __shared__ float parts[kGateUpThreads / kWave][kGroups][kGroupRows];
    alignas(16) __shared__ float columns[2 * kActBlock];
    for (int j = 0; j < kGroups; ++j) {
      const float sum = wave_sum_of_row(sums[j]);
      if (lane_id() < kGroupRows) parts[wave_id()][j][lane_id()] = sum;
    }
    __syncthreads();
    if (wave_id() != 0) return;
    if (lane_id() < kActBlock) {
      const int waves = team_size() / kWave;
      const int first = lane_id() / kGroupRows * waves;
      float total[kGroups] = {};
      for (int wave = first; wave < first + waves; ++wave) {
        for (int j = 0; j < kGroups; ++j) total[j] += parts[wave][j][lane_id() % kGroupRows];
      }
      if (is_gated_) {
        columns[lane_id()] = value(block_ * kActBlock + lane_id(), total[0], total[1]);
      } else {
        const int group = lane_id() / kGateRows * 2 * kGateRows + lane_id() % kGateRows;
        columns[group] = squared_relu(total[0]);
        columns[group + kGateRows] = squared_relu(total[1]);
      }
    }
    wave_sync();
    const int four = lane_id() % kActLanes * 4;
    const int blocks = is_gated_ ? 1 : 2;
    for (int i = 0; i < blocks; ++i) {
      const int first = (block_ * blocks + i) * kActBlock;
      if (first >= out_features) return;
      out.store(row * out_features + first + four, load16(columns + i * kActBlock + four),
                lane_id() < kActLanes);
    }
  }

 private:
  static __device__ __forceinline__ int team_size() {
    return static_cast<int>(blockDim.x) / kTeams;
  }

  int block_;
  GemvTile<1> tile_;
  bool is_gated_;
  int last_row_;
};

// The products of a pair with gate and up, and where they go.
struct GateUpOutputs {
  Outputs outputs;         // of an expert; out_features is a multiple of 32
  const float* gate_bias;  // [experts, out_features] or null
  const float* up_bias;    // with gate_bias
  ActOutput out;           // [pairs, out_features]

  // As the matrix has its rows.
  __device__ __forceinline__ Outputs stored() const {
    const bool is_gated = outputs.activation != kSquaredRelu;
    return {outputs.out_features, is_gated ? outputs.activation : kNotGated};
  }

  __device__ __forceinline__ void finish(const GateUpTile& tile, const float (&sums)[kGroups],
                                         int expert, int64_t pair) const {
    const int features = outputs.out_features;
    tile.finish(sums, out, pair, features, [&](int column, float gate, float up) {
      if (gate_bias) {
        gate += gate_bias[static_cast<int64_t>(expert) * features + column];
        up += up_bias[static_cast<int64_t>(expert) * features + column];
      }
      return gated(gate, up, outputs.activation);
    });
  }
};

// How the waves of a tile divide a token's experts: those that are computed at the same time, each
// by `split` waves, which share its K.
struct ExpertWaves {
  int split;
  int at_once;
  int wave;  // this one

  static __device__ __forceinline__ ExpertWaves of(int num_chosen, int waves, int wave) {
    const int split = max(1, waves / num_chosen);
    return {split, waves / split, wave};
  }
  __device__ __forceinline__ int first_expert() const { return wave / split; }
  __device__ __forceinline__ int first_piece() const {
    return (wave % split * kWave + lane_id()) / kGroupRows;
  }
  __device__ __forceinline__ int piece_step() const { return split * kWave / kGroupRows; }
};

// The weighted sum of what a token's experts make, and where it goes.
struct DownOutputs {
  Outputs outputs;    // of an expert
  const float* bias;  // [experts, out_features] or null
  float* out;         // [tokens, out_features]

  // The sums have the weights of their experts already.
  template <class Tile>
  __device__ __forceinline__ void finish(const Tile& tile, float (&sums)[1][kGroups],
                                         const Chosen& chosen, int64_t token) const {
    const int64_t features = outputs.out_features;
    tile.finish(sums, outputs, 1, [&](int, int column, float value, float) {
      out[token * features + column] = biased(column, value, chosen, token);
    });
  }

  // The sum of a column plus the biases of the token's experts.
  __device__ __forceinline__ float biased(int column, float sum, const Chosen& chosen,
                                          int64_t token) const {
    for (int i = 0; bias && i < chosen.num_chosen; ++i) {
      const int64_t pair = token * chosen.num_chosen + i;
      if (chosen.expert[pair] == kElsewhere) continue;
      const int64_t row = static_cast<int64_t>(chosen.expert[pair]) * outputs.out_features;
      sum += chosen.weight[pair] * bias[row + column];
    }
    return sum;
  }
};

}  // namespace rf
