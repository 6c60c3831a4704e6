// Sorts the pairs of tokens and experts by expert (groups.h).
//
// A block for each expert goes over all pairs twice: it counts those of the experts before its own,
// then writes its own where they belong. Nobody waits for another block, and the order is always
// the same.
#include "rf/experts/experts.h"
#include "rf/experts/groups.h"
#include "rf/lane_masks.h"
#include "rf/wave.h"

namespace rf {

inline constexpr int kAtOnce = 4;
inline constexpr int kNoPair = 0x7fffffff;  // after all experts, as is
inline constexpr int kNotHere = kNoPair - 1;

}  // namespace rf

// chosen: int32 [pairs], the expert of each, where num_chosen pairs are a token. Writes, sorted,
// tokens [pairs], the token of each; places [pairs], where each pair went, kElsewhere for those of
// experts that another device has, which are sorted nowhere; and tiles
// [pairs / tile_rows + experts] for a GEMM with so many rows in a tile.
// Grid: experts, block: any number of waves.
extern "C" __global__ __launch_bounds__(1024) void rf_group_experts(
    const int32_t* __restrict__ chosen, int32_t* tokens, int32_t* places, rf::GroupTile* tiles,
    int pairs, int num_chosen, int tile_rows) {
  __shared__ int before_of_wave[rf::kMaxWaves];
  __shared__ int own_of_wave[rf::kMaxWaves];
  const int expert = static_cast<int>(blockIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  // Each wave takes consecutive pairs.
  const int rounds = (pairs + threads - 1) / threads;
  const int begin = rf::wave_id() * rounds * rf::kWave;
  // Calls use(pair, its expert) for those of this lane. Several loads are on their way at once.
  const auto for_pairs = [&](const auto& use) {
    for (int round = 0; round < rounds; round += rf::kAtOnce) {
      int experts[rf::kAtOnce];
#pragma unroll
      for (int i = 0; i < rf::kAtOnce; ++i) {
        const int pair = begin + (round + i) * rf::kWave + rf::lane_id();
        const bool present = round + i < rounds && pair < pairs;
        const int expert = present ? chosen[pair] : rf::kNoPair;
        experts[i] = expert == rf::kElsewhere ? rf::kNotHere : expert;
      }
#pragma unroll
      for (int i = 0; i < rf::kAtOnce; ++i) {
        use(begin + (round + i) * rf::kWave + rf::lane_id(), experts[i]);
      }
    }
  };

  int before = 0;
  int own = 0;
  for_pairs([&](int, int other) {
    before += other < expert ? 1 : 0;
    own += other == expert ? 1 : 0;
  });
  before = rf::wave_sum(before);
  own = rf::wave_sum(own);
  if (rf::lane_id() == 0) {
    before_of_wave[rf::wave_id()] = before;
    own_of_wave[rf::wave_id()] = own;
  }
  __syncthreads();
  int first = 0;
  int end = 0;
  int place = 0;
  for (int wave = 0; wave < threads / rf::kWave; ++wave) {
    first += before_of_wave[wave];
    if (wave < rf::wave_id()) place += own_of_wave[wave];
    end += own_of_wave[wave];
  }
  place += first;
  end += first;

  // Most waves have few of an expert's pairs. The first block writes what no expert here has.
  if (own > 0 || expert == 0) {
    for_pairs([&](int pair, int other) {
      if (expert == 0 && other == rf::kNotHere) places[pair] = rf::kElsewhere;
      const rf::LaneMask lanes = rf::ballot(other == expert);
      if (lanes == 0) return;
      if (other == expert) {
        const int to = place + rf::count_lower(lanes);
        tokens[to] = pair / num_chosen;
        places[pair] = to;
      }
      place += rf::count_lanes(lanes);
    });
  }

  const int first_tile = rf::first_tile(expert, first, tile_rows);
  const int tiles_end = rf::first_tile(expert + 1, end, tile_rows);
  for (int i = first_tile + static_cast<int>(threadIdx.x); i < tiles_end; i += threads) {
    const int begin_of_tile = first + (i - first_tile) * tile_rows;
    tiles[i] = {expert, begin_of_tile, rf::min(begin_of_tile + tile_rows, end), 0};
  }
}
