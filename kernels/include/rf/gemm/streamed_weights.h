// Weights that waves copy to LDS ahead, each its own, on Hopper GPUs.
#pragma once

#include "rf/mma/warpgroup.h"
#include "rf/weights/formats.h"

namespace rf {

#if RF_WARPGROUPS

// A step of 16 stored rows, kQuantBlocks of each, in LDS: two groups of them (weights.h), the
// second one kApart behind the first, with the planes that a matrix of these has.
template <class Format, int kQuantBlocks, int kApart>
class StreamedWeights {
  static constexpr int kGroups = 2;
  static constexpr int kPiece = 16;  // bytes

 public:
  static constexpr int kGroupsApart = kApart;
  static constexpr int kBytes = kGroups * kGroupRows * sizeof(typename Format::Block) *
                                kQuantBlocks * kQuantBlock / Format::Block::kWeights;

  // steps: of a row.
  __device__ __forceinline__ StreamedWeights(const uint8_t* data, int stored_rows, int steps)
      : data_(data), groups_(stored_rows / kGroupRows), steps_(steps) {}

  // The first group of a tile.
  static __device__ __forceinline__ int first_group(int tile) {
    return tile / kGroupsApart * (2 * kGroupsApart) + tile % kGroupsApart;
  }

  // Begins to copy a step of the rows of a tile.
  __device__ __forceinline__ void start(int tile, int step, uint8_t* stage) const {
    Format::of(Copies{*this, static_cast<uint32_t>(first_group(tile)), static_cast<uint32_t>(step),
                      0, stage},
               kQuantBlocks);
  }

  // Row `row` of what was copied.
  static __device__ __forceinline__ Format row(const uint8_t* stage, int row) {
    return Format::of(Copied{stage, row}, kQuantBlocks);
  }

 private:
  // Walks over planes, to copy them. Places in the matrix are counted in pieces.
  struct Copies {
    const StreamedWeights& weights;
    uint32_t first_group;
    uint32_t step;
    uint32_t plane;
    uint8_t* to;

    template <class T>
    __device__ __forceinline__ Items<const T> take(int items) {
      static_assert(kGroupRows * sizeof(T) % kPiece == 0);
      const int group_pieces = items * (kGroupRows * static_cast<int>(sizeof(T)) / kPiece);
      const int pieces = kGroups * group_pieces;
#pragma unroll
      for (int i = 0; i < (pieces + kWave - 1) / kWave; ++i) {
        const int piece = i * kWave + lane_id();
        if (pieces % kWave != 0 && piece >= pieces) continue;
        const uint32_t group = first_group + piece / group_pieces * kGroupsApart;
        const uint32_t from =
            plane + (group * weights.steps_ + step) * group_pieces + piece % group_pieces;
        warpgroup::async_copy<kPiece>(to + piece * kPiece,
                                      weights.data_ + static_cast<uint64_t>(from) * kPiece);
      }
      plane += static_cast<uint32_t>(weights.groups_ * weights.steps_) * group_pieces;
      to += pieces * kPiece;
      return {nullptr};
    }
  };

  // Walks over the planes that were copied.
  struct Copied {
    const uint8_t* next;
    int row;

    template <class T>
    __device__ __forceinline__ Items<const T> take(int items) {
      const auto* plane = reinterpret_cast<const T*>(next);
      next += kGroups * kGroupRows * items * static_cast<int>(sizeof(T));
      return {plane + row / kGroupRows * (items * kGroupRows) + row % kGroupRows};
    }
  };

  const uint8_t* data_;
  int groups_;
  int steps_;
};

#endif

}  // namespace rf
