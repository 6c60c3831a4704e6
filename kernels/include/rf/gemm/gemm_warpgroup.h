// GEMM for many rows with the matrix instructions of Hopper GPUs.
//
// W is their left operand, so that each lane unpacks weights of two rows of W straight into
// registers, and nothing but x goes through LDS. The matrix unit multiplies while lanes
// unpack the next weights. A block takes 256 rows of x, so that each weight is unpacked once for as
// many; or 272, with a second instruction, where 256 would leave a few rows to blocks of their own,
// which take as long as others: a lane unpacks as much for them. Where there are fewer rows, it
// takes 128, and two blocks share a multiprocessor.
#pragma once

#include "rf/gemm/gemm_block.h"
#include "rf/gemm/gemm_tiles.h"
#include "rf/mma/warpgroup.h"

namespace rf {

inline constexpr int kWideTileRows = 272;  // at most
inline constexpr int kInstructionRows = 256;

#if RF_WARPGROUPS

template <class Format, int kTileRows>
class WarpgroupGemm {
  static constexpr int kFirstRows = kTileRows < kInstructionRows ? kTileRows : kInstructionRows;
  static constexpr int kRowTiles = kTileRows / 16, kFirstRowTiles = kFirstRows / 16;
  static constexpr int kWaves = 8;
  // Each wave has the sums of 16 columns of y.
  using Block = GemmBlock<kTileRows, kWaves, kWaves, true, kRowTiles>;
  using Accumulators = Block::Accumulators;

  static constexpr int kStepQuantBlocks = 2;  // 64 elements, the width of a tile of x
  static constexpr int kStepK = kStepQuantBlocks * kQuantBlock;
  static constexpr int kPieces = kStepK / 16;  // of a step: what an instruction multiplies
  static constexpr int kStages = 5;
  using Tile = SwizzledTile<kTileRows>;

 public:
  static constexpr int kThreads = Block::kThreads;
  static constexpr int kBlocks = kTileRows <= 128 ? 2 : 1;  // that share a multiprocessor

  union alignas(warpgroup::kTileAlignment) Lds {
    half x[kStages][kTileRows * kStepK];
    Block::Staged staged;
  };

  static __device__ __forceinline__ void run(const GemmArguments& arguments, Lds& lds) {
    const int first_column = blockIdx.y * kTileColumns;
    const int begin = blockIdx.z * arguments.split_quant_blocks / kStepQuantBlocks;
    const int end = min(begin + arguments.split_quant_blocks / kStepQuantBlocks,
                        arguments.quant_blocks / kStepQuantBlocks);
    const auto tile = [&](int stage) { return Tile{lds.x[stage]}; };
    const Activations x(arguments);
    const Weights weights(arguments, first_column + Block::wave_column());

    // What an instruction reads stays until it has ended: that of two later ones is unpacked
    // meanwhile. Tiles of x stay as long.
    constexpr int kAhead = 2;
    constexpr int kTilesAhead = kStages - 2;
#pragma unroll
    for (int i = 0; i < kTilesAhead; ++i) {
      if (begin + i < end) x.start(begin + i, tile(i));
      async_commit();
    }
    typename Weights::Held held[2] = {weights.load(begin, end), weights.load(begin + 1, end)};
    uint32_t unpacked[kPieces][4];
    Mma::Acc sums[kRowTiles] = {};
    typename Weights::Factors factors[2] = {weights.factors(held[0], begin)};
#pragma unroll
    for (int piece = 0; piece < kAhead; ++piece) {
      weights.unpack(held[0], factors[0], piece, unpacked[piece]);
    }
    async_wait<kTilesAhead - 1>();
    warpgroup::publish();

    int stage = 0;
    for (int first = begin; first < end; first += 2) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int step = first + odd;
        if (odd > 0 && step >= end) break;
        const warpgroup::Descriptor descriptor = tile(stage).descriptor();
        __syncthreads();
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          warpgroup::begin();
          multiply(sums, unpacked[piece], warpgroup::behind(descriptor, piece * 32));
          warpgroup::commit();
          warpgroup::wait<kAhead>();
          const int next = (piece + kAhead) % kPieces;
          const int which = piece + kAhead < kPieces ? odd : 1 - odd;
          if (next == 0) factors[which] = weights.factors(held[which], step + 1);
          weights.unpack(held[which], factors[which], next, unpacked[next]);
          if (next != kPieces - 1) continue;
          // The fence waits for what is on its way to this lane, so that new loads follow it.
          async_wait<kTilesAhead - 2>();
          warpgroup::publish();
          const int later = stage + kTilesAhead;
          if (step + kTilesAhead < end)
            x.start(step + kTilesAhead, tile(later < kStages ? later : later - kStages));
          async_commit();
          held[odd] = weights.load(step + 2, end);
          issue_loads();
        }
        stage = stage + 1 < kStages ? stage + 1 : 0;
      }
    }
    warpgroup::wait<0>();
    warpgroup::receive(sums);
    Block::store(reinterpret_cast<const Accumulators&>(sums), 1.0f, lds.staged, arguments,
                 first_column);
  }

 private:
  static __device__ __forceinline__ void multiply(Mma::Acc (&sums)[kRowTiles],
                                                  const uint32_t (&weights)[4],
                                                  warpgroup::Descriptor x) {
    using First = Mma::Acc[kFirstRowTiles];
    warpgroup::multiply(reinterpret_cast<First&>(sums), weights, x);
    if constexpr (kRowTiles > kFirstRowTiles) {
      using Rest = Mma::Acc[kRowTiles - kFirstRowTiles];
      warpgroup::multiply(reinterpret_cast<Rest&>(sums[kFirstRowTiles]), weights,
                          warpgroup::behind(x, kFirstRows * 128));
    }
  }

  // Copies tiles of x, without rows beyond the last, whose results nobody asks for.
  class Activations {
   public:
    __device__ __forceinline__ explicit Activations(const GemmArguments& arguments)
        : from_(arguments.x +
                static_cast<int64_t>(arguments.first_row + own_row()) * arguments.quant_blocks *
                    kQuantBlock +
                own_chunk() * 8),
          stride_(kRowsAtOnce * arguments.quant_blocks * kQuantBlock),
          rows_(min(arguments.rows - arguments.first_row, kTileRows) - own_row()) {}

    __device__ __forceinline__ void start(int step, Tile tile) const {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const half* from = from_ + static_cast<int64_t>(step * kStepK + i * stride_);
        if (i * kRowsAtOnce < rows_)
          async_copy16(tile.chunk(own_row(), own_chunk()) + i * kRowsAtOnce * kStepK, from);
      }
    }

   private:
    static constexpr int kRowsAtOnce = kThreads * 8 / kStepK;
    static constexpr int kCopies = (kTileRows + kRowsAtOnce - 1) / kRowsAtOnce;
    static_assert(kRowsAtOnce % 8 == 0);

    static __device__ __forceinline__ int own_row() { return threadIdx.x / (kStepK / 8); }
    static __device__ __forceinline__ int own_chunk() { return threadIdx.x % (kStepK / 8); }

    const half* from_;
    int stride_;
    int rows_;
  };

  // The weights of 16 rows of a wave. A lane unpacks elements 2 t and 2 t + 1 of each eight of rows
  // g and g + 8, where g = lane / 4 and t = lane % 4: the left operand of an instruction that
  // multiplies two times eight. Of the scales of a step, those of two rows and two quant blocks,
  // each lane of four computes one.
  class Weights {
    static constexpr int kQuantBlocks = Format::kQuantBlocks;
    static constexpr bool kHasCodebook = requires { typename Format::Codebook; };
    static constexpr int kChunks = kStepQuantBlocks / kQuantBlocks;  // of a row in a step
    static constexpr int kScales = Format::kScales;
    static constexpr int kWords = Format::kOffset ? kScales : (kScales + 1) / 2;

   public:
    using Chunk = Format::Chunk;
    struct Held {
      Chunk codes[2][kChunks];
      Chunk own;  // whose scales this lane computes
    };
    struct Factors {
      uint32_t words[kWords];
    };

    __device__ __forceinline__ Weights(const GemmArguments& arguments, int first_row)
        : rows_{row(arguments, first_row), row(arguments, first_row + 8)},
          own_(row(arguments, first_row + 8 * own_row())) {}

    // Those of `step`, or of the last before `end`.
    __device__ __forceinline__ Held load(int step, int end) const {
      const int first = min(step, end - 1) * kChunks;
      Held held;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) held.codes[r][i] = own_part(rows_[r], first + i);
      }
      held.own = own_.load(first + own_quant_block() / kQuantBlocks);
      return held;
    }

    __device__ __forceinline__ Factors factors(const Held& held, int step) const {
      if constexpr (kHasCodebook) {  // they take words of the chunk by u, which has to be known
        const Factors both[2] = {packed(Format::scales(held.own, step % 4, 0)),
                                 packed(Format::scales(held.own, step % 4, 1))};
        Factors own;
#pragma unroll
        for (int i = 0; i < kWords; ++i)
          own.words[i] = own_quant_block() ? both[1].words[i] : both[0].words[i];
        return own;
      } else {
        return packed(Format::scales(held.own, step % 4, own_quant_block() % kQuantBlocks));
      }
    }

    // Makes the operand of piece `piece` of a step.
    __device__ __forceinline__ void unpack(const Held& held, const Factors& factors, int piece,
                                           uint32_t (&operand)[4]) const {
      const int u = piece / 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int c = piece % 2 * 2 + half;  // which eight of the quant block
          const int part = c * kScales / kTileChunks;
          const int lane = lane_id() / 4 * 4 + 2 * r + u;
          const Half2 both = unpack::as_halves(
              platform::shfl_word(factors.words[Format::kOffset ? part : part / 2], lane));
          const auto& chunk = held.codes[r][u / kQuantBlocks];
          Half2 weights = pair(chunk, u % kQuantBlocks, c);
          if constexpr (Format::kOffset) {
            weights = weights * both[0] + both[1];
          } else {
            weights *= both[part % 2];
          }
          operand[r + 2 * half] = __builtin_bit_cast(uint32_t, weights);
          asm volatile("" : "+r"(operand[r + 2 * half]));
        }
      }
    }

   private:
    static __device__ __forceinline__ Factors packed(const Scales<kScales>& scales) {
      Factors factors;
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const Half2 pair = Format::kOffset
                               ? Half2{to_half(scales.scale[i]), to_half(scales.offset[i])}
                               : Half2{to_half(scales.scale[2 * i % kScales]),
                                       to_half(scales.scale[(2 * i + 1) % kScales])};
        factors.words[i] = __builtin_bit_cast(uint32_t, pair);
      }
      return factors;
    }

    // What own_codes() needs.
    static __device__ __forceinline__ Chunk own_part(const Format& row, int i) {
      if constexpr (kHasCodebook) {
        return row.load(i);
      } else {
        return row.load(i, Part<2>{own_word()});
      }
    }
    // The lane's four of eight c of a quant block.
    static __device__ __forceinline__ uint32_t own_codes(const Chunk& chunk, int u, int c) {
      const uint32_t first = Format::code(chunk, u, 2 * c);
      if constexpr (!kHasCodebook) return first;
      const uint32_t second = Format::code(chunk, u, 2 * c + 1);
      return own_word() ? second : first;
    }
    static __device__ __forceinline__ int own_word() { return lane_id() % 4 / 2; }
    static __device__ __forceinline__ int own_row() { return lane_id() % 4 / 2; }
    static __device__ __forceinline__ int own_quant_block() { return lane_id() % 2; }

    static __device__ __forceinline__ Format row(const GemmArguments& arguments, int first_row) {
      const int stored_rows = arguments.outputs.stored_rows();
      const int row = min(first_row + lane_id() / 4, stored_rows - 1);
      return Format::of(Planes(arguments.weight, stored_rows, row), arguments.quant_blocks);
    }

    // The lane's two of eight c of a quant block, less kZero.
    static __device__ __forceinline__ Half2 pair(const Chunk& chunk, int u, int c) {
      const bool second = lane_id() % 2 != 0;  // of the word's two pairs
      if constexpr (requires { Format::code_halves(chunk, u, c); }) {
        const U2 codes = Format::code_halves(chunk, u, 2 * c);
        return unpack::as_halves(second ? codes[1] : codes[0]);
      } else {
        constexpr uint32_t kFlipSigns = Format::kSigned ? 0x80808080u : 0u;
        constexpr float kZero = 1024.0f + (Format::kSigned ? 128.0f : Format::kZero);
        const uint32_t codes = own_codes(chunk, u, c) ^ kFlipSigns;
        const uint32_t bytes = byte_select(codes, 0x64646464u, second ? 0x04030402u : 0x04010400u);
        return unpack::as_halves(bytes) - to_half(kZero);
      }
    }

    Format rows_[2];
    Format own_;
  };
};

#endif

}  // namespace rf
