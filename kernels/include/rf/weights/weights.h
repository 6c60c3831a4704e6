// Weight matrices as the linear kernels read them, and how each type is unpacked.
//
// A matrix is [rows, K] (rows: outputs of the layer), K a multiple of 32, rows padded with zeros
// to a multiple of 32. It is stored as planes, one for each part of a quantised block (codes, high
// bits, scales ...), and in a plane the items of eight rows lie side by side:
//
//   plane[row / 8][item][row % 8]     an item is 1 to 16 bytes: T of its Items
//
// Consecutive lanes read consecutive items, so every load of a wave is one contiguous piece of
// memory, aligned, and up to 16 bytes a lane, whatever the block size in the file; eight lanes
// share the activation they multiply with. The planes together have the size of the file's blocks.
//
// A quant block is 32 weights of a row; the 256 weights that k-quants store together in the file
// are a super-block of eight. Codes are packed alike for all types, byte b of word w holding
//   nibbles  U4  per quant block   low nibble: element 4 w + b, high nibble: element 16 + 4 w + b
//   pairs    U2  per quant block   bits 2 f, 2 f + 1: element 16 w + 4 f + b
//   bits     u32 per quant block   bit f: element 4 f + b
// and planes follow in the order of the members of each format (formats.h). A matrix for a gated
// layer holds gate and up: stored row 32 i + j is gate row 16 i + j, row 32 i + 16 + j is up row
// 16 i + j.
#pragma once

#include "rf/platform.h"

namespace rf {

inline constexpr int kQuantBlock = 32;  // weights
inline constexpr int kGroupRows = 8;    // rows whose items are interleaved
inline constexpr int kRowAlign = 32;    // stored rows are a multiple of this
inline constexpr int kGateRows = 16;    // rows of gate, then as many of up

using U2 = Vec<uint32_t, 2>;
using U4 = Vec<uint32_t, 4>;
using Half2 = Vec<half, 2>;

// The items of one row in one plane; T is const for reading.
template <class T>
struct Items {
  T* first;
  __device__ __forceinline__ T& operator[](int index) const {
    return first[static_cast<int64_t>(index) * kGroupRows];
  }
};

// T, const where Byte is.
template <class Byte, class T>
struct LikeByte {
  using Type = T;
};
template <class T>
struct LikeByte<const uint8_t, T> {
  using Type = const T;
};

// Walks over the planes of a matrix in their order, for one row of it.
template <class Byte>
class PlaneWalk {
 public:
  __device__ __forceinline__ PlaneWalk(Byte* data, int64_t stored_rows, int64_t row)
      : next_(data), stored_rows_(stored_rows), row_(row) {}

  template <class T>
  __device__ __forceinline__ auto take(int64_t items_a_row) {
    using Item = LikeByte<Byte, T>::Type;
    const int64_t first = row_ / kGroupRows * (items_a_row * kGroupRows) + row_ % kGroupRows;
    const Items<Item> items{reinterpret_cast<Item*>(next_) + first};
    next_ += stored_rows_ * items_a_row * static_cast<int64_t>(sizeof(T));
    return items;
  }

 private:
  Byte* next_;
  int64_t stored_rows_;
  int64_t row_;
};
using Planes = PlaneWalk<const uint8_t>;  // to read a matrix

}  // namespace rf
