// GEMV of one row where copies to LDS go around registers (Hopper GPUs): a wave asks for weights of
// its next steps, and of its next tiles, while it multiplies with those of this step. So a block
// takes one tile after another, and a multiprocessor always waits for as many bytes as LDS holds.
//
// Each lane finds what it finds in gemv.h, in the same order: results have the same bits.
#pragma once

#include "rf/gemv/gemv.h"

#if (RF_NVIDIA && __CUDA_ARCH__ >= 900) || (RF_HOST && RF_WAVE == 32)
#define RF_STREAMS 1
#endif

#if RF_STREAMS

namespace rf {

static_assert(kWave == 32, "a wave takes four chunks of eight rows in a step");
inline constexpr int kWaveChunks = kWave / kGroupRows;  // of a step

// What eight rows of a format have of four chunks from `first` on, a multiple of 4: kCount pieces
// of 16 bytes. `rows` stands at the first of them. pieces(rows, first, lane, copy) calls
// copy(piece, from) for those of a lane; chunk(pieces, place, row) makes one of the chunks of
// these.
template <class Format>
struct Streamed;

struct StreamedCodes {  // the first 64 pieces
  template <class Copy>
  static __device__ __forceinline__ void pieces(const Items<const U4>& all, int first, int lane,
                                                const Copy& copy) {
    const U4* codes = &all[2 * first];
    copy(lane, codes + lane);
    copy(32 + lane, codes + 32 + lane);
  }
  static __device__ __forceinline__ const U4* codes(const U4* pieces, int place, int row) {
    return pieces + place * 2 * kGroupRows + row;
  }
};

template <>
struct Streamed<Q4_K> : StreamedCodes {
  static constexpr int kCount = 72;
  template <class Copy>
  static __device__ __forceinline__ void pieces(const Q4_K& rows, int first, int lane,
                                                const Copy& copy) {
    StreamedCodes::pieces(rows.nibbles, first, lane, copy);
    if (lane < 8) copy(64 + lane, &rows.header[first / 4] + lane);
  }
  static __device__ __forceinline__ Q4_K::Chunk chunk(const U4* pieces, int place, int row) {
    const U4* own = codes(pieces, place, row);
    return {{own[0], own[kGroupRows]}, pieces[64 + row]};
  }
};

template <>
struct Streamed<Q6_K> : StreamedCodes {
  static constexpr int kCount = 105;
  template <class Copy>
  static __device__ __forceinline__ void pieces(const Q6_K& rows, int first, int lane,
                                                const Copy& copy) {
    StreamedCodes::pieces(rows.nibbles, first, lane, copy);
    copy(64 + lane, &rows.pairs[first] + lane);
    if (lane < 8) copy(96 + lane, reinterpret_cast<const U4*>(&rows.scale[first]) + lane);
    if (lane == 8) copy(104, &rows.d[first / 4]);
  }
  static __device__ __forceinline__ Q6_K::Chunk chunk(const U4* pieces, int place, int row) {
    const U4* own = codes(pieces, place, row);
    return {{own[0], own[kGroupRows]},
            pieces[64 + place * kGroupRows + row],
            reinterpret_cast<const uint32_t*>(pieces + 96)[place * kGroupRows + row],
            reinterpret_cast<const half*>(pieces + 104)[row]};
  }
};

template <>
struct Streamed<Q8_0> : StreamedCodes {
  static constexpr int kCount = 68;
  template <class Copy>
  static __device__ __forceinline__ void pieces(const Q8_0& rows, int first, int lane,
                                                const Copy& copy) {
    StreamedCodes::pieces(rows.codes, first, lane, copy);
    if (lane < 4) copy(64 + lane, reinterpret_cast<const U4*>(&rows.d[first]) + lane);
  }
  static __device__ __forceinline__ Q8_0::Chunk chunk(const U4* pieces, int place, int row) {
    const U4* own = codes(pieces, place, row);
    return {{own[0], own[kGroupRows]},
            reinterpret_cast<const half*>(pieces + 64)[place * kGroupRows + row]};
  }
};

// As unit_dot: the product of quant block u of a chunk and one of activations.
template <class Format>
__device__ __forceinline__ float streamed_dot(const typename Format::Chunk& chunk, int place, int u,
                                              const Activations::Block& x) {
  uint32_t code[8];
  for (int k = 0; k < 8; ++k) code[k] = Format::code(chunk, u, k);
  return unit_dot<Format>(code, Format::scales(chunk, place, u), x);
}

// As unit_dot has it with high nibbles in their places, in the words that NVIDIA's assembler orders
// best here: steps of Llama-8B take 0.5% longer with those of unit_dot.
template <>
__device__ __forceinline__ float streamed_dot<Q4_K>(const Q4_K::Chunk& chunk, int place, int u,
                                                    const Activations::Block& x) {
  const Scales<1> scales = Q4_K::scales(chunk, place, u);
  int low = 0, high = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t word = chunk.nibbles[u][k];
    low = dot4_unsigned(word & 0x0f0f0f0fu, static_cast<int>(x.q[0][k]), low);
    high = dot4_unsigned(word & 0xf0f0f0f0u, static_cast<int>(x.q[1][k]), high);
  }
  const int sum = low + (high >> 4);
  const int x_sum = x.scale.sum_low + x.scale.sum_high;
  float result = 0.0f;
  result += scales.scale[0] * static_cast<float>(sum);
  result += scales.offset[0] * static_cast<float>(x_sum);
  return x.scale.scale * result;
}

// Where the steps of a wave lie in LDS until it takes them, kSlots of them at most.
template <int kBytes>
struct alignas(16) StreamSlots {
  U4 items[kBytes / sizeof(U4)];
  template <class Format>
  static constexpr int kCount =
      kBytes / static_cast<int>(kGroups * Streamed<Format>::kCount * sizeof(U4));
};

// Which units of tiles a block takes: first, first + step ... below end.
struct Units {
  int first;
  int step;
  int end;
};

// Multiplies with the kTiles tiles of each unit, of which kAtOnce are taken at once by as many
// parts of the block. Calls begun() when the first weights are on their way, before it reads x;
// found(unit's number among the block's own, tile of the unit, wave of the tile, sums) with what
// lanes found; finish(unit, its number) when all waves have called that for the unit. That is
// behind a barrier, and what found() wrote must last until the barrier of the unit after the next.
template <class Format, int kTiles, int kAtOnce, int kBytes, class X, class Begun, class Found,
          class Finish>
__device__ __forceinline__ void stream_units(const uint8_t* weight, X& x, const Outputs& outputs,
                                             const Units& units, StreamSlots<kBytes>* lds,
                                             const Begun& begun, const Found& found,
                                             const Finish& finish) {
  constexpr int kSlots = StreamSlots<kBytes>::template kCount<Format>;
  constexpr int kAhead = kSlots - 1;
  using Own = Streamed<Format>;
  static_assert(kAhead > 0);
  const int threads = static_cast<int>(blockDim.x) / kAtOnce;
  const int part = static_cast<int>(threadIdx.x) / threads;
  const int wave = (static_cast<int>(threadIdx.x) - part * threads) / kWave;
  const int waves = threads / kWave;
  const int lane = lane_id(), row = lane % kGroupRows, place = lane / kGroupRows;
  const int chunks = x.quant_blocks / Format::kQuantBlocks;
  const int steps = (chunks + kWaveChunks * waves - 1) / (kWaveChunks * waves);
  U4* const slots = lds[wave_id()].items;
  const auto slot_at = [&](int slot) { return slots + slot * kGroups * Own::kCount; };

  // What is asked for next.
  int asked_unit = units.first, asked_tile = part, asked_step = 0, asked_slot = 0;
  Format asked[kGroups];
  const auto ask = [&] {
    if (asked_unit < units.end) {
      if (asked_step == 0) {
        const GemvTile<1> tile(asked_unit * kTiles + asked_tile);
        for (int j = 0; j < kGroups; ++j) {
          const Planes planes(weight, outputs.stored_rows(), tile.row(j) - row);
          asked[j] = Format::of(planes, x.quant_blocks);
        }
      }
      const int first = (asked_step * waves + wave) * kWaveChunks;
      if (first < chunks) {
        U4* to = slot_at(asked_slot);
        for (int j = 0; j < kGroups; ++j) {
          Own::pieces(asked[j], first, lane, [&](int piece, const void* from) {
            async_copy16(to + j * Own::kCount + piece, from);
          });
        }
      }
      if (++asked_step == steps) {
        asked_step = 0;
        asked_tile += kAtOnce;
        if (asked_tile >= kTiles) {
          asked_tile = part;
          asked_unit += units.step;
        }
      }
    }
    async_commit();
    asked_slot = asked_slot == kSlots - 1 ? 0 : asked_slot + 1;
  };

  for (int i = 0; i < kAhead; ++i) ask();
  begun();
  int slot = 0, number = 0;
  for (int unit = units.first; unit < units.end; unit += units.step, ++number) {
#pragma unroll 1
    for (int tile = part; tile < kTiles; tile += kAtOnce) {
      float sums[1][kGroups] = {};
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        constexpr int kQuantBlocks = Format::kQuantBlocks;
        const int first = (step * waves + wave) * kWaveChunks;
        const bool is_there = first < chunks;
        typename X::Block values[kQuantBlocks];
        if (is_there) {
          for (int u = 0; u < kQuantBlocks; ++u) {
            values[u] = x.load(0, (first + place) * kQuantBlocks + u);
          }
        }
        async_wait<kAhead - 1>();
        wave_sync();  // what other lanes have copied is here, and none reads the slot before
        const U4* own = slot_at(slot);
        ask();
        if (asked_unit >= units.end) let_next_begin();
        slot = slot == kSlots - 1 ? 0 : slot + 1;
        if (!is_there) continue;
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
          const auto chunk = Own::chunk(own + j * Own::kCount, place, row);
#pragma unroll
          for (int u = 0; u < kQuantBlocks; ++u) {
            sums[0][j] += streamed_dot<Format>(chunk, place, u, values[u]);
          }
        }
      }
      found(number, tile, wave, sums);
    }
    __syncthreads();
    finish(unit, number);
  }
}

}  // namespace rf

#endif  // RF_STREAMS
