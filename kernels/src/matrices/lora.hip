// LoRA adapters (Hu et al. 2021): y += factor * (x A^T) B^T, with an A and a B for each adapter.
//
// Rows of x with the same adapter come in tiles of up to 16 (Chen et al. 2023, Punica, gather them
// alike), so that each tile meets one A and one B and rows without an adapter cost nothing. A row's
// result does not depend on its tile.
//
// The matrix may be a stack of parts (query, key and value; gate and up), each with its own A and
// B. `adapters` says where those are: for adapter i and part p, at index i parts + p,
//   first row of A, place of B in eights of halves, rank; a rank of 0: this part is not changed
// A has `in_features` halves a row. B is [columns of y, rank rounded up to 8], padded with zeros.
//
// A tile is: adapter, first, count. Its rows are order[first] to order[first + count - 1]; the
// tiles of a captured graph that are not needed have a count of 0.
#include "rf/activations/act.h"
#include "rf/mma/mma.h"

namespace rf {

inline constexpr int kTileRows = 16;
inline constexpr int kShrinkWaves = 8;
inline constexpr int kExpandWaves = 4;
inline constexpr int kAhead = Mma::kStepChunks == 1 ? 2 : 4;  // steps

struct LoraTile {
  int adapter, first, count;

  static __device__ __forceinline__ LoraTile of(const int32_t* tiles, int index) {
    return {tiles[3 * index], tiles[3 * index + 1], tiles[3 * index + 2]};
  }
};

struct LoraPart {
  int64_t a_row, b_chunk;
  int rank;

  static __device__ __forceinline__ LoraPart of(const int32_t* adapters, int index) {
    return {adapters[3 * index], adapters[3 * index + 1], adapters[3 * index + 2]};
  }
};

__device__ __forceinline__ Chunk8 half_chunk(const half* x) {
  return *reinterpret_cast<const Chunk8*>(x);
}
__device__ __forceinline__ Chunk8 half_chunk(Vec<float, 4> low, Vec<float, 4> high) {
  Vec<half, 8> halves;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    halves[i] = act_half(low[i]);
    halves[i + 4] = act_half(high[i]);
  }
  return __builtin_bit_cast(Chunk8, halves);
}
__device__ __forceinline__ Chunk8 half_chunk(const float* x) {
  return half_chunk(load16(x), load16(x + 4));
}

// 16 rows and 16 ranks a block, whose waves share its piece of K.
template <class T>
__device__ __forceinline__ void lora_shrink(const T* x, const half* a, const int32_t* tiles,
                                            const int32_t* order, const int32_t* adapters,
                                            float* shrunk, int in_features, int split_features,
                                            int parts, int ranks) {
  __shared__ float sums[kShrinkWaves][kTileRows * 16];
  const int part_tiles = ranks / parts / 16;
  const int part = static_cast<int>(blockIdx.x) / part_tiles;
  const int first_rank = static_cast<int>(blockIdx.x) % part_tiles * 16;
  const LoraTile tile = LoraTile::of(tiles, blockIdx.y);
  if (tile.count == 0) return;
  const LoraPart low = LoraPart::of(adapters, tile.adapter * parts + part);
  if (first_rank >= low.rank) return;

  const int begin = static_cast<int>(blockIdx.z) * split_features / 8;
  const int end = min(begin + split_features / 8, in_features / 8);
  // Rows and ranks beyond the last are the last again; nobody reads what becomes of them.
  const auto x_tile = [&](int row, int chunk) {
    const int64_t from = order[tile.first + min(row, tile.count - 1)];
    return chunk < end ? half_chunk(x + from * in_features + chunk * 8) : Chunk8{};
  };
  const auto a_tile = [&](int row, int chunk) {
    const int64_t from = low.a_row + min(first_rank + row, low.rank - 1);
    return chunk < end ? half_chunk(a + from * in_features + chunk * 8) : Chunk8{};
  };
  // Several steps are loaded at once: with few rows, waiting is what takes the time.
  constexpr int kStride = kShrinkWaves * Mma::kStepChunks;
  Mma::Acc sum{};
  for (int chunk = begin + wave_id() * Mma::kStepChunks; chunk < end; chunk += kAhead * kStride) {
    decltype(Mma::load_a(x_tile, 0, 0)) x_part[kAhead];
    decltype(Mma::load_b(a_tile, 0, 0)) a_part[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      x_part[i] = Mma::load_a(x_tile, 0, chunk + i * kStride);
      a_part[i] = Mma::load_b(a_tile, 0, chunk + i * kStride);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) Mma::multiply(sum, x_part[i], a_part[i]);
  }
#pragma unroll
  for (int i = 0; i < kAccValues; ++i) {
    sums[wave_id()][Mma::row(i) * 16 + Mma::column(i)] = sum.value[i];
  }
  __syncthreads();

  const int i = threadIdx.x;
  if (i >= kTileRows * 16) return;
  float total = 0.0f;
#pragma unroll
  for (int wave = 0; wave < kShrinkWaves; ++wave) total += sums[wave][i];
  const int64_t tile_row = static_cast<int64_t>(blockIdx.z * gridDim.y + blockIdx.y) * kTileRows;
  shrunk[(tile_row + i / 16) * ranks + part * (ranks / parts) + first_rank + i % 16] = total;
}

}  // namespace rf

// shrunk = x A^T for the rows of each tile, in pieces that are still to be added up.
// x: [rows, in_features], in_features and split_features multiples of 32. shrunk: f32 [splits, 16
// tiles, ranks]: for each part as many as the largest rank of any adapter rounded up to 16, `ranks`
// together.
// Grid: (ranks / 16, tiles, splits of the columns), block: 8 waves.
#define RF_LORA_SHRINK(name, T)                                                                    \
  extern "C" __global__ __launch_bounds__(rf::kShrinkWaves* rf::kWave) void rf_lora_shrink_##name( \
      const T* __restrict__ x, const rf::half* __restrict__ a, const int32_t* __restrict__ tiles,  \
      const int32_t* __restrict__ order, const int32_t* __restrict__ adapters,                     \
      float* __restrict__ shrunk, int in_features, int split_features, int parts, int ranks) {     \
    rf::lora_shrink(x, a, tiles, order, adapters, shrunk, in_features, split_features, parts,      \
                    ranks);                                                                        \
  }

RF_LORA_SHRINK(f32, float)
RF_LORA_SHRINK(f16, rf::half)

// y += factor * shrunk B^T for the rows of each tile.
// factors: f32, indexed as `adapters`. outputs: of each part, where in y its first 16 columns are,
// how far it is from one 16 to the next, and how many there are. y: f32 [rows, out_features].
// Grid: (most 16s of a part / 4, parts, tiles), block: 4 waves, each of which computes 16 columns.
extern "C" __global__ __launch_bounds__(rf::kExpandWaves* rf::kWave) void rf_lora_expand(
    const float* __restrict__ shrunk, const rf::half* __restrict__ b,
    const int32_t* __restrict__ tiles, const int32_t* __restrict__ order,
    const int32_t* __restrict__ adapters, const float* __restrict__ factors,
    const int32_t* __restrict__ outputs, float* __restrict__ y, int splits, int ranks,
    int out_features) {
  using rf::Mma;
  const int parts = gridDim.y, part = blockIdx.y;
  const rf::LoraTile tile = rf::LoraTile::of(tiles, blockIdx.z);
  const int column_tile = static_cast<int>(blockIdx.x) * rf::kExpandWaves + rf::wave_id();
  if (tile.count == 0 || column_tile >= outputs[3 * part + 2]) return;
  const int index = tile.adapter * parts + part;
  const rf::LoraPart low = rf::LoraPart::of(adapters, index);
  if (low.rank == 0) return;

  const int chunks = (low.rank + 7) / 8;
  const float* own = shrunk + part * (ranks / parts);
  const int64_t split_stride = static_cast<int64_t>(gridDim.z) * rf::kTileRows * ranks;
  const auto shrunk_tile = [&](int row, int chunk) {
    if (chunk >= chunks) return rf::Chunk8{};
    const int64_t place = static_cast<int64_t>(blockIdx.z) * rf::kTileRows + row;
    const float* from = own + place * ranks + chunk * 8;
    rf::Vec<float, 4> low = rf::load16(from), high = rf::load16(from + 4);
    for (int split = 1; split < splits; ++split) {
      low += rf::load16(from + split * split_stride);
      high += rf::load16(from + split * split_stride + 4);
    }
    return rf::half_chunk(low, high);
  };
  const auto b_tile = [&](int row, int chunk) {
    const int64_t from = low.b_chunk + static_cast<int64_t>(column_tile * 16 + row) * chunks;
    return chunk < chunks ? rf::half_chunk(b + (from + chunk) * 8) : rf::Chunk8{};
  };
  Mma::Acc sum{};
  for (int chunk = 0; chunk < chunks; chunk += Mma::kStepChunks) {
    Mma::multiply(sum, Mma::load_a(shrunk_tile, 0, chunk), Mma::load_b(b_tile, 0, chunk));
  }
  const float factor = factors[index];
  const int first = outputs[3 * part] + column_tile * outputs[3 * part + 1];
#pragma unroll
  for (int i = 0; i < rf::kAccValues; ++i) {
    if (Mma::row(i) >= tile.count) continue;
    const int64_t row = order[tile.first + Mma::row(i)];
    y[row * out_features + first + Mma::column(i)] += factor * sum.value[i];
  }
}
