// Brings the matrices of experts that many rows have chosen from the host's memory to the device,
// before a GEMM whose tiles of rows would read each matrix several times through the bus.
#include "rf/experts/groups.h"
#include "rf/wave.h"
#include "rf/weights/weights.h"

namespace rf {

inline constexpr int kFetchThreads = 256;
inline constexpr int kFetchLoads = 4;  // on their way at once

// Whether a tile of pairs has this expert; of the whole wave.
__device__ __forceinline__ bool has_pairs(const GroupTile* tiles, int count, int expert) {
  bool found = false;
  for (int first = 0; first < count; first += kWave) {
    const int i = first + lane_id();
    const bool own = i < count && tiles[i].expert == expert && tiles[i].first < tiles[i].end;
    found = found || ballot(own) != 0;
  }
  return found;
}

}  // namespace rf

// weight, places: experts of expert_bytes each (expert_matrices.h), of which those within
// seated_bytes of weight are on the device. tiles [num_tiles]: groups.h. Writes found [experts]:
// places, except that an expert of the others which has pairs is copied to `fetched`, distance
// bytes from weight, where each expert has room. Grid: (experts, any number of parts), block 256.
extern "C" __global__ __launch_bounds__(rf::kFetchThreads) void rf_fetch_experts(
    const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,
    const rf::GroupTile* __restrict__ tiles, uint8_t* __restrict__ fetched,
    int64_t* __restrict__ found, int64_t distance, int64_t expert_bytes, int64_t seated_bytes,
    int num_tiles) {
  const int expert = static_cast<int>(blockIdx.x);
  const int64_t place = places[expert];
  const bool is_seated = place >= 0 && place < seated_bytes;
  const bool is_fetched = !is_seated && rf::has_pairs(tiles, num_tiles, expert);
  const int64_t room = expert * expert_bytes;
  if (blockIdx.y == 0 && threadIdx.x == 0) found[expert] = is_fetched ? distance + room : place;
  if (!is_fetched) return;
  const uint8_t* from = weight + place;
  uint8_t* to = fetched + room;
  const int64_t pieces = expert_bytes / 16;
  const int64_t step = static_cast<int64_t>(gridDim.y) * rf::kFetchThreads;
  int64_t piece = static_cast<int64_t>(blockIdx.y) * rf::kFetchThreads + threadIdx.x;
  for (; piece < pieces; piece += step * rf::kFetchLoads) {
    rf::U4 held[rf::kFetchLoads];
#pragma unroll
    for (int i = 0; i < rf::kFetchLoads; ++i) {
      const int64_t at = piece + i * step;
      held[i] = *reinterpret_cast<const rf::U4*>(from + (at < pieces ? at : piece) * 16);
    }
#pragma unroll
    for (int i = 0; i < rf::kFetchLoads; ++i) {
      const int64_t at = piece + i * step;
      if (at < pieces) *reinterpret_cast<rf::U4*>(to + at * 16) = held[i];
    }
  }
}
