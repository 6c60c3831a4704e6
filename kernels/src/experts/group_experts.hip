// Sorts the pairs of tokens and experts by expert (groups.h).
//
// A block for each expert goes over all pairs twice: it counts those of each expert, then writes
// its own where they belong. Nobody waits for another block, and the order is always the same.
#include "rf/experts/experts.h"
#include "rf/experts/groups.h"
#include "rf/wave.h"

namespace rf {

inline constexpr int kAtOnce = 4;
inline constexpr int kNoPair = 0x7fffffff;  // after all experts, as is
inline constexpr int kNotHere = kNoPair - 1;
inline constexpr int kSums = 3;

__device__ __forceinline__ int count_lanes(LaneMask lanes) { return __builtin_popcountll(lanes); }

// Lanes of the mask below this one.
__device__ __forceinline__ int count_lower(LaneMask lanes) {
  return count_lanes(lanes & ((LaneMask{1} << lane_id()) - 1));
}

}  // namespace rf

// chosen: int32 [pairs], the expert of each, where num_chosen pairs are a token. Writes, sorted,
// tokens [pairs], the token of each; places [pairs], where each pair went, kElsewhere for those of
// experts that another device has, which are sorted nowhere; and tiles
// [pairs / tile_rows + experts] for a GEMM with so many rows in a tile, those with pairs first.
// Grid: experts, block: any number of waves.
extern "C" __global__ __launch_bounds__(1024) void rf_group_experts(
    const int32_t* __restrict__ chosen, int32_t* tokens, int32_t* places, rf::GroupTile* tiles,
    int pairs, int num_chosen, int tile_rows) {
  __shared__ int counts[rf::kMostGroups];  // pairs of each expert
  __shared__ int own_of_wave[rf::kMaxWaves];
  __shared__ int sums_of_wave[rf::kMaxWaves][rf::kSums];
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

  const int experts = static_cast<int>(gridDim.x);
  for (int i = static_cast<int>(threadIdx.x); i < experts; i += threads) counts[i] = 0;
  __syncthreads();
  int own = 0;
  for_pairs([&](int, int other) {
    own += other == expert ? 1 : 0;
    if (other < experts) rf::atomic_add(&counts[other], 1);
  });
  own = rf::wave_sum(own);
  if (rf::lane_id() == 0) own_of_wave[rf::wave_id()] = own;
  __syncthreads();

  // Pairs and tiles of the experts before this one, and all tiles.
  int sums[rf::kSums] = {};
  for (int i = static_cast<int>(threadIdx.x); i < experts; i += threads) {
    const int tiles_of = (counts[i] + tile_rows - 1) / tile_rows;
    sums[0] += i < expert ? counts[i] : 0;
    sums[1] += i < expert ? tiles_of : 0;
    sums[2] += tiles_of;
  }
  for (int& sum : sums) sum = rf::wave_sum(sum);
  if (rf::lane_id() == 0) {
    for (int i = 0; i < rf::kSums; ++i) sums_of_wave[rf::wave_id()][i] = sums[i];
  }
  __syncthreads();
  int first = 0;
  int first_tile = 0;
  int all_tiles = 0;
  int place = 0;
  for (int wave = 0; wave < threads / rf::kWave; ++wave) {
    first += sums_of_wave[wave][0];
    first_tile += sums_of_wave[wave][1];
    all_tiles += sums_of_wave[wave][2];
    if (wave < rf::wave_id()) place += own_of_wave[wave];
  }
  place += first;
  const int end = first + counts[expert];

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

  const int own_tiles = (end - first + tile_rows - 1) / tile_rows;
  for (int i = static_cast<int>(threadIdx.x); i < own_tiles; i += threads) {
    const int begin_of_tile = first + i * tile_rows;
    tiles[first_tile + i] = {expert, begin_of_tile, rf::min(begin_of_tile + tile_rows, end),
                             all_tiles};
  }
  // The places that are left over, of which each block has every so many.
  const int places_of_tiles = pairs / tile_rows + experts;
  for (int i = all_tiles + expert + static_cast<int>(threadIdx.x) * experts; i < places_of_tiles;
       i += threads * experts)
    tiles[i] = {0, 0, 0, all_tiles};
}
