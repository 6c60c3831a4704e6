// Products of pairs that have an expert in common, up to eight at a time, on int8 matrix
// instructions: what is read of the expert is unpacked once for all of them, and costs the same for
// one and for eight.
//
// A wave has 16 stored rows of the expert and takes every so many steps of K. Its lanes load the
// words of their own rows straight into the fragments. x of the pairs lies in LDS as the fragments
// have it.
#pragma once

#include "rf/experts/experts.h"
#include "rf/mma/mma_int8.h"

namespace rf {

inline constexpr int kSharedPairs = 8;
inline constexpr int kSharedThreads = 256;
inline constexpr int kMostSharedBlocks = 128;  // quant blocks of a row
inline constexpr bool kSharesExperts = MmaInt8::kColumns == kSharedPairs;

// The pairs that are computed together: if there are none, another pair has this one, too.
struct Sharers {
  int count;
  int expert;
  int pair[kSharedPairs];
};

// Returns how many. All waves of a block call this, each for itself; the first writes them.
__device__ __forceinline__ int find_sharers(const int32_t* chosen, int pairs, int pair, int expert,
                                            Sharers& found) {
  const bool writes = wave_id() == 0;
  int before = 0;
  int count = 0;
  for (int first = 0; first < pairs; first += kWave) {
    const int i = first + lane_id();
    const bool is_same = i < pairs && chosen[i] == expert;
    before += __builtin_popcountll(ballot(is_same && i < pair));
    const LaneMask here = ballot(is_same && i >= pair);
    const LaneMask lower = here & ((LaneMask{1} << lane_id()) - 1);
    const int place = count + __builtin_popcountll(lower);
    if (writes && is_same && i >= pair && place < kSharedPairs) found.pair[place] = i;
    count += __builtin_popcountll(here);
  }
  count = before % kSharedPairs == 0 ? min(count, kSharedPairs) : 0;
  if (writes && lane_id() == 0) {
    found.count = count;
    found.expert = expert;
  }
  return count;
}

// kTiles: of 16 rows each, that a block has. Matrix is MmaInt8, where that has eight columns.
template <class Format, int kTiles, class Matrix>
class SharedProduct {
  static constexpr int kWaves = kSharedThreads / kWave;
  static constexpr int kStep = 4;   // quant blocks of a wave
  static constexpr int kParts = 4;  // lanes with the same rows

 public:
  static constexpr int kKWaves = kWaves / kTiles;
  static constexpr int kRows = 16 * kTiles;
  static constexpr int kSumStride = kRows + 4;  // other banks for each two pairs

  struct Lds {
    Sharers sharers;
    union {
      struct {
        // What follows each pair keeps the next one in other banks.
        alignas(16) U2 x[kSharedPairs][kMostSharedBlocks + 1][kParts];
        // What products begin with, and scales, each of two pairs. Those of the last step, where
        // some count nothing, come behind.
        alignas(16) U4 begin[kSharedPairs / 2][kMostSharedBlocks + 1];
        alignas(8) Vec<float, 2> scale[kSharedPairs / 2][kMostSharedBlocks + kStep];
      };
      float sums[kKWaves][kSharedPairs][kSumStride];
    };
  };

  static __device__ __forceinline__ int tile() { return wave_id() % kTiles; }
  static __device__ __forceinline__ int k_wave() { return wave_id() / kTiles; }

  // Computes row_of(r), the stored row of this lane's row r of the tile, for all sharers: their
  // sums are then in LDS, by wave along K, sharer and 16 * tile + 8 * r + place. x_row(pair) is the
  // row of x of a pair.
  template <class RowOf, class XRow>
  static __device__ __forceinline__ void run(Lds& lds, int sharers, const uint8_t* matrix,
                                             int stored_rows, int quant_blocks, const int8_t* q,
                                             const ActScale* scale, const RowOf& row_of,
                                             const XRow& x_row) {
    const uint32_t* nibbles[2];
    const uint8_t* exponents[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto row = Format::of(Planes(matrix, stored_rows, row_of(r)), quant_blocks);
      nibbles[r] = reinterpret_cast<const uint32_t*>(row.nibbles.first) + Matrix::lane_part();
      exponents[r] = row.scale.first;
    }
    // A step that would reach beyond the last quant block begins earlier, and its first count
    // nothing.
    const int last = quant_blocks - kStep;
    constexpr int kStride = kStep * kKWaves;
    uint32_t codes[kStep][2];
    uint32_t exponent[kStep][2];
    const auto load = [&](int u, int from) __attribute__((always_inline)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        codes[u][r] = nibbles[r][(from + u) * (4 * kGroupRows)];
        exponent[u][r] = Matrix::load_byte(exponents[r] + (from + u) * kGroupRows);
      }
    };
    const int begin = k_wave() * kStep;
#pragma unroll
    for (int u = 0; u < kStep; ++u) load(u, min(begin, last));
    issue_loads();

    __syncthreads();
    put(lds, sharers, quant_blocks, q, scale, x_row);
    __syncthreads();
    float sums[2][2] = {};
    // What there is no pair for is as the last one, and goes nowhere.
    const int sharer = min(Matrix::activation_row(), sharers - 1);
    const int columns = min(Matrix::lane_column_group(), (sharers - 1) / 2);
#pragma unroll 1
    for (int first = begin; first < quant_blocks; first += kStride) {
      const int from = min(first, last);
      const int next = min(first + kStride, last);
      const U2* x = &lds.x[sharer][from][Matrix::lane_part()];
      const U4* begins = &lds.begin[columns][from];
      const auto* factors = &lds.scale[columns][first > last ? kMostSharedBlocks : first];
#pragma unroll
      for (int u = 0; u < kStep; ++u) {
        const U2 words = x[u * kParts];
        const auto own = factors[u];
        const uint32_t x_words[2] = {words[0], words[1]};
        uint32_t unpacked[2][2];
        float w_scale[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const auto both =
              Matrix::mirror_in_order(Format::magnitudes(), Format::kZero, codes[u][r]);
          unpacked[r][0] = both[0];
          unpacked[r][1] = both[1];
          w_scale[r] = Format::doubled_scale(exponent[u][r]);
        }
        load(u, next);  // while what came before is used
        float products[2][2];
        Matrix::multiply_from(products, begins[u], unpacked, x_words);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          // A scale is a power of two, so that its product with the bias is exact.
          const float bias = -w_scale[r] * Matrix::kBias;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            sums[r][i] += own[i] * fma(w_scale[r], products[r][i], bias);
          }
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        lds.sums[k_wave()][Matrix::lane_column(i)][16 * tile() + Matrix::lane_row(r)] = sums[r][i];
      }
    }
    __syncthreads();
  }

  static __device__ __forceinline__ float total(const Lds& lds, int sharer, int row) {
    float sum = lds.sums[0][sharer][row];
#pragma unroll
    for (int wave = 1; wave < kKWaves; ++wave) sum += lds.sums[wave][sharer][row];
    return sum;
  }

 private:
  // Brings x of the pairs. Threads divide quant blocks, and those of a block that are too many for
  // that pairs, so that they seldom wait for memory twice.
  template <class XRow>
  static __device__ __forceinline__ void put(Lds& lds, int sharers, int quant_blocks,
                                             const int8_t* q, const ActScale* scale,
                                             const XRow& x_row) {
    const int block = static_cast<int>(threadIdx.x) % kMostSharedBlocks;
    if (block >= quant_blocks) return;
    const int last = quant_blocks - kStep;
    const int counted = quant_blocks / kStep * kStep;  // from here on, in the last step
#pragma unroll 1
    for (int s = static_cast<int>(threadIdx.x) / kMostSharedBlocks; s < sharers;
         s += kSharedThreads / kMostSharedBlocks) {
      const int64_t place = static_cast<int64_t>(x_row(lds.sharers.pair[s])) * quant_blocks + block;
      const U4* values = reinterpret_cast<const U4*>(q) + 2 * place;
      const U4 low = values[0], high = values[1];
      const ActScale own = scale[place];
      auto* to = reinterpret_cast<U4*>(lds.x[s][block]);
      to[0] = U4{in_order(low[0], high[0], 0), in_order(low[0], high[0], 1),
                 in_order(low[1], high[1], 0), in_order(low[1], high[1], 1)};
      to[1] = U4{in_order(low[2], high[2], 0), in_order(low[2], high[2], 1),
                 in_order(low[3], high[3], 0), in_order(low[3], high[3], 1)};
      // Scales of these weights are doubled.
      const float factor = own.scale * 0.5f;
      const uint32_t start = Matrix::kBiasBits - Format::kZero * (own.sum_low + own.sum_high);
      auto& begin = lds.begin[s / 2][block];
      auto& of_block = lds.scale[s / 2][block];
      auto& of_last = lds.scale[s / 2][kMostSharedBlocks + max(block - last, 0)];
      const float in_last = block < counted ? 0.0f : factor;
      if (s % 2 == 0 && s == sharers - 1) {  // the next one is as this one
        begin = U4{start, start, start, start};
        of_block = {factor, factor};
        if (block >= last) of_last = {in_last, in_last};
      } else {
        auto* words = reinterpret_cast<uint32_t*>(&begin) + s % 2;
        words[0] = words[2] = start;
        reinterpret_cast<float*>(&of_block)[s % 2] = factor;
        if (block >= last) reinterpret_cast<float*>(&of_last)[s % 2] = in_last;
      }
    }
  }
  // Bytes in the order of nibbles: of the lower halves of both words, or the upper.
  static __device__ __forceinline__ uint32_t in_order(uint32_t low, uint32_t high, int upper) {
    return byte_select(low, high, upper ? 0x07030602u : 0x05010400u);
  }
};

}  // namespace rf
