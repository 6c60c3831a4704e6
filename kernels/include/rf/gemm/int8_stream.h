// Products of up to 8 rows of int8 with large matrices on Hopper GPUs: gemm_int8_stream.hip.
//
// Bound by reading W, so what is read shall always be on its way: one block to a multiprocessor,
// and each of its waves has a copy of a super-block of its own under way, which no other wave waits
// for. The first begin before the kernel in front of it has ended. All waves share x in LDS, which
// so is read once by each multiprocessor, and not by each 32 stored rows.
#pragma once

#include "rf/gemm/int8_arguments.h"
#include "rf/gemm/streamed_weights.h"
#include "rf/mma/mma_int8.h"
#include "rf/weights/formats.h"

namespace rf {

inline constexpr int kStreamRows = 8;           // of x, in all slices together, at most
inline constexpr int kStreamQuantBlocks = 224;  // of a row, at most
inline constexpr int kStreamWaves = 28;
inline constexpr int kStreamThreads = kStreamWaves * 32;

#if RF_WARPGROUPS

// All of x in LDS. Of two quant blocks, a chunk, the words that a lane multiplies lie side by side.
class StreamedActivations {
  static constexpr int kRows = kStreamRows;
  static constexpr int kChunkBlocks = 2;
  static constexpr int kBlocks = kStreamQuantBlocks;

 public:
  // Rows beyond the last are the last again.
  __device__ __forceinline__ void bring(const Int8Arguments& x) {
    const int last = x.x_rows() - 1;
    // A thread has the same row of each quant block.
    static_assert(kStreamThreads % kRows == 0);
    float completed = 1.0f;
    if (x.norm.squares) {
      x.norm.find_factors(last + 1, x.quant_blocks, factors_);
      lds_barrier();
      completed = factors_[min(static_cast<int>(threadIdx.x) % kRows, last)];
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < x.quant_blocks * kRows; i += kStreamThreads) {
      const int block = i / kRows, row = i % kRows;
      const int64_t from = static_cast<int64_t>(min(row, last)) * x.quant_blocks + block;
      const auto* words = reinterpret_cast<const U4*>(x.q) + from * 2;
      const U4 low = words[0], high = words[1];
      const U2 scale = reinterpret_cast<const U2*>(x.scale)[from];
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        auto& to = words_[block / kChunkBlocks][row][place(part, row)];
        reinterpret_cast<U2*>(&to)[block % kChunkBlocks] = U2{low[part], high[part]};
      }
      const uint32_t factor = scale[0];
      const int sums = static_cast<int>(scale[1] * 0x10001u);  // of both halves in the upper one
      scales_[block][row / 2][row % 2] = __builtin_bit_cast(float, factor) * completed;
      scales_[block][row / 2][2 + row % 2] = static_cast<float>(sums >> 16);
    }
  }

  // Words t and t + 4 of both quant blocks of a chunk, of part t.
  __device__ __forceinline__ U4 words(int chunk, int row, int part) const {
    return words_[chunk][row][place(part, row)];
  }
  // Of a quant block of rows 2 pair and 2 pair + 1 the scales, then the sums.
  __device__ __forceinline__ Vec<float, 4> scales(int block, int pair) const {
    return *reinterpret_cast<const Vec<float, 4>*>(scales_[block][pair]);
  }

 private:
  // Keeps what eight lanes store or load at once in different banks.
  static __device__ __forceinline__ int place(int part, int row) { return part ^ (row / 2 & 3); }

  U4 words_[kBlocks / kChunkBlocks][kRows][4];
  alignas(16) float scales_[kBlocks][kRows / 2][4];
  float factors_[kRows];
};

template <class Format>
class Int8Stream {
  using Matrix = MmaInt8;
  static_assert(Matrix::kColumns == kStreamRows && Matrix::kLaneRows == 2 && Matrix::kParts == 4);
  static_assert(Format::kQuantBlocks == 2 && Format::kScales == 1 && Format::kOffset);
  static_assert(Format::kZero == 0 && sizeof(typename Format::Block) > 128);
  static constexpr int kTileRows = 16;
  static constexpr int kChunks = 4;  // of a super-block
  using Weights = StreamedWeights<Format, 8, kGateRows / kGroupRows>;
  static constexpr int kGroupsApart = Weights::kGroupsApart;
  using Sums = float[2][2];

  // What a wave has for itself in the end.
  struct Own {
    float sums[kStreamRows][kTileRows + 1];
  };
  static constexpr int kMostLds = 227 * 1024;
  static constexpr int kOthers = sizeof(StreamedActivations) + kStreamWaves * sizeof(Own);
  static constexpr int kRoom = (kMostLds - kOthers) / (kStreamWaves * Weights::kBytes);
  static constexpr int kStages = kRoom < 4 ? kRoom : 4;
  static_assert(kStages >= 2);

 public:
  struct Lds {
    StreamedActivations x;
    Own own[kStreamWaves];
    alignas(16) uint8_t stages[kStreamWaves][kStages][Weights::kBytes];
  };

  static __device__ __forceinline__ void run(const Int8Arguments& arguments, Lds& lds) {
    const int stored_rows = arguments.outputs.stored_rows();
    const int super_blocks = arguments.quant_blocks / 8;
    // Each block takes as many tiles as the others, or one more.
    const int tiles = stored_rows / kTileRows;
    const int least = static_cast<int>(static_cast<unsigned>(tiles) / gridDim.x);
    const int others = tiles - least * static_cast<int>(gridDim.x);
    const int block = static_cast<int>(blockIdx.x);
    const int begin = block * least + min(block, others);
    const int end = begin + least + (block < others ? 1 : 0);
    // Waves that share a tile take turns along K.
    const int most = least + (others > 0 ? 1 : 0);
    const int k_waves = most > kStreamWaves ? 1 : kStreamWaves / max(most, 1);
    const int slots = static_cast<int>(static_cast<unsigned>(kStreamWaves) / k_waves);
    const int wave = uniform(wave_id());
    const int slot = static_cast<int>(static_cast<unsigned>(wave) / k_waves);
    const int k_wave = wave - slot * k_waves;

    const Weights weights(arguments.weight, stored_rows, super_blocks);
    const int first_tile = slot < slots ? begin + slot : end;
    int next_tile = first_tile, next_block = k_wave;  // that are copied next
    int started = 0, taken = 0;                       // the stages that are next
    const auto start = [&]() __attribute__((always_inline)) {
      if (next_tile < end && next_block < super_blocks)
        weights.start(next_tile, next_block, lds.stages[wave][started]);
      async_commit();
      started = started + 1 == kStages ? 0 : started + 1;
      next_block += k_waves;
      if (next_block >= super_blocks) {
        next_block = k_wave;
        next_tile += slots;
      }
    };
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) start();

    wait_for_previous(arguments.q, arguments.scale, arguments.norm.squares);
    lds.x.bring(arguments);
    lds_barrier();

    const int rounds = static_cast<int>(static_cast<unsigned>(end - begin + slots - 1) / slots);
    int tile = first_tile;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round, tile += slots) {
      Sums sums{};
      if (tile < end) {
#pragma unroll 1
        for (int now = k_wave; now < super_blocks; now += k_waves) {
          async_wait<kStages - 2>();
          wave_sync();
          start();
          add(sums, lds.stages[wave][taken], lds.x, now);
          taken = taken + 1 == kStages ? 0 : taken + 1;
        }
      }
      finish(lds, sums, arguments, tile, tile < end, k_waves, slot * k_waves);
    }
  }

 private:
  // Adds the products of a super-block, the one numbered `super_block` of its row. Each lane makes
  // all scales of its rows: LDS, which all that a wave multiplies with comes from, is what takes
  // longest, and would hold those that lanes make for each other.
  static __device__ __forceinline__ void add(Sums& sums, const uint8_t* stage,
                                             const StreamedActivations& x, int super_block) {
    const int part = Matrix::lane_part();
    const Format rows[2] = {Weights::row(stage, Matrix::lane_row(0)),
                            Weights::row(stage, Matrix::lane_row(1))};
    const typename Format::AllScales all_scales[2] = {typename Format::AllScales(rows[0].load(0)),
                                                      typename Format::AllScales(rows[1].load(0))};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      typename Format::Chunk chunk[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) chunk[r] = rows[r].load(c, Part<4>{part});
      const int of_x = super_block * kChunks + c;
      const U4 words = x.words(of_x, Matrix::activation_row(), part);
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const auto x_scales = x.scales(of_x * 2 + u, Matrix::lane_column_group());
        const uint32_t both[2] = {words[2 * u], words[2 * u + 1]};
        uint32_t codes[2][2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
          for (int j = 0; j < 2; ++j) codes[r][j] = Format::code(chunk[r], u, 4 * j);
        }
        float products[2][2];
        Matrix::template multiply<0, 2>(products, codes, both);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const auto scales = all_scales[r][2 * c + u];
          const float scale = scales.scale[0], offset = scales.offset[0];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            // A scale has few enough bits for its product with the bias to be exact.
            float total = fma(scale, products[r][i], -scale * Matrix::kBias);
            total = fma(offset, x_scales[2 + i], total);
            sums[r][i] = fma(x_scales[i], total, sums[r][i]);
          }
        }
      }
    }
  }

  // Adds up what the waves of a tile, from `first_wave` on, and the slices have, and writes its
  // columns, if there are such.
  static __device__ __forceinline__ void finish(Lds& lds, const Sums& sums,
                                                const Int8Arguments& arguments, int tile,
                                                bool is_present, int k_waves, int first_wave) {
    const int wave = uniform(wave_id());
    const auto wait = [&]() __attribute__((always_inline)) {
      if (k_waves == 1) {
        wave_sync();
      } else {
        lds_barrier();
      }
    };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        lds.own[wave].sums[Matrix::lane_column(i)][Matrix::lane_row(r)] = sums[r][i];
    }
    wait();
    const auto total = [&](int x_row, int row) {
      float sum = 0.0f;
      for (int slice = 0; slice < arguments.slices; ++slice) {
        for (int other = 0; other < k_waves; ++other)
          sum += lds.own[first_wave + other].sums[slice * arguments.rows + x_row][row];
      }
      return sum;
    };
    const Outputs& outputs = arguments.outputs;
    const bool is_gated = outputs.activation != kNotGated;
    const int row_bits = is_gated ? 3 : 4;
    static_assert(kGroupRows == 1 << 3 && kTileRows == 1 << 4);
    const int items = is_present ? arguments.rows << row_bits : 0;
    const int first = lane_id() + (wave - first_wave) * kWave;
    for (int item = first; item < items; item += k_waves * kWave) {
      const int row = item & ((1 << row_bits) - 1), x_row = item >> row_bits;
      const int group = Weights::first_group(tile) + row / kGroupRows * kGroupsApart;
      const int column = outputs.column(group * kGroupRows + row % kGroupRows);
      if (column >= outputs.out_features) continue;
      float value = total(x_row, row);
      if (is_gated) value = gated(value, total(x_row, row + kGroupRows), outputs.activation);
      arguments.result.store(x_row, column, outputs.out_features, value);
    }
    wait();  // the sums have been read
  }
};

#endif

}  // namespace rf
