// From the blocks of a GGUF file to the layout of weights.h, once, when a model is loaded.
#include "rf/quants.h"
#include "rf/weights.h"

namespace rf {

using PlanesOut = PlaneWalk<uint8_t>;

inline constexpr int kRepackThreads = 256;

// Which stored row a row of the file becomes: itself, or its place in a gated layer's matrix.
enum Placing { kAsIs = 0, kAsGate = 1, kAsUp = 2 };

__device__ __forceinline__ int stored_row(int row, int placing) {
  if (placing == kAsIs) return row;
  return row / kGateRows * kRowAlign + row % kGateRows + (placing == kAsUp ? kGateRows : 0);
}

// The codes of the quant block that begins at `first`, packed as weights.h says.
template <class Block>
__device__ __forceinline__ U4 pack_nibbles(const Block& block, int first) {
  U4 packed{};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const uint32_t low = block.code(first + i) & 15;
    const uint32_t high = block.code(first + 16 + i) & 15;
    packed[i / 4] |= (low | high << 4) << (8 * (i % 4));
  }
  return packed;
}
template <class Block>
__device__ __forceinline__ U2 pack_pairs(const Block& block, int first, int from_bit) {
  U2 packed{};
#pragma unroll
  for (int i = 0; i < kQuantBlock; ++i) {
    const uint32_t pair = block.code(first + i) >> from_bit & 3;
    packed[i / 16] |= pair << (8 * (i % 4) + 2 * (i % 16 / 4));
  }
  return packed;
}
template <class Block>
__device__ __forceinline__ uint32_t pack_bits(const Block& block, int first, int from_bit) {
  uint32_t packed = 0;
#pragma unroll
  for (int i = 0; i < kQuantBlock; ++i) {
    const uint32_t bit = block.code(first + i) >> from_bit & 1;
    packed |= bit << (8 * (i % 4) + i / 4);
  }
  return packed;
}

// One call writes one quant block, of a type that stores 32 weights together ...

__device__ __forceinline__ void repack(const gguf::BlockQ8_0& block, PlanesOut planes,
                                       int quant_blocks, int quant_block) {
  const auto codes = planes.take<U4>(2 * quant_blocks);
  for (int part = 0; part < 2; ++part) {
    codes[2 * quant_block + part] = load_unaligned<U4, 2>(block.qs + 16 * part);
  }
  planes.take<half>(quant_blocks)[quant_block] = block.d;
}

__device__ __forceinline__ void repack(const gguf::BlockQ4_0& block, PlanesOut planes,
                                       int quant_blocks, int quant_block) {
  planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, 0);
  planes.take<half>(quant_blocks)[quant_block] = block.d;
}

__device__ __forceinline__ void repack(const gguf::BlockQ4_1& block, PlanesOut planes,
                                       int quant_blocks, int quant_block) {
  planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, 0);
  planes.take<Half2>(quant_blocks)[quant_block] = Half2{block.d, block.m};
}

__device__ __forceinline__ void repack(const gguf::BlockQ5_0& block, PlanesOut planes,
                                       int quant_blocks, int quant_block) {
  planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, 0);
  planes.take<uint32_t>(quant_blocks)[quant_block] = pack_bits(block, 0, 4);
  planes.take<half>(quant_blocks)[quant_block] = block.d;
}

__device__ __forceinline__ void repack(const gguf::BlockQ5_1& block, PlanesOut planes,
                                       int quant_blocks, int quant_block) {
  planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, 0);
  planes.take<uint32_t>(quant_blocks)[quant_block] = pack_bits(block, 0, 4);
  planes.take<Half2>(quant_blocks)[quant_block] = Half2{block.d, block.m};
}

__device__ __forceinline__ void repack(const gguf::BlockMXFP4& block, PlanesOut planes,
                                       int quant_blocks, int quant_block) {
  planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, 0);
  planes.take<uint8_t>(quant_blocks)[quant_block] = block.e;
}

// ... or of a type with super-blocks of 256. `block` is the one that holds the quant block. Planes
// whose items span several quant blocks are written in the parts that each has, or by the first.

__device__ __forceinline__ void repack(const gguf::BlockQ2_K& block, PlanesOut planes,
                                       int quant_blocks, int quant_block) {
  const auto pairs = planes.take<U4>(quant_blocks / 2);
  reinterpret_cast<U2*>(&pairs[quant_block / 2])[quant_block % 2] =
      pack_pairs(block, quant_block % 8 * kQuantBlock, 0);
  const auto scale_min = planes.take<uint32_t>(quant_blocks / 2);
  reinterpret_cast<uint16_t*>(&scale_min[quant_block / 2])[quant_block % 2] =
      load_unaligned<uint16_t>(block.scales + quant_block % 8 * 2);
  if (quant_block % 8 == 0)
    planes.take<Half2>(quant_blocks / 8)[quant_block / 8] = Half2{block.d, block.dmin};
}

struct PackedScales {
  uint32_t word[3];
};

__device__ __forceinline__ void repack(const gguf::BlockQ3_K& block, PlanesOut planes,
                                       int quant_blocks, int quant_block) {
  const auto pairs = planes.take<U4>(quant_blocks / 2);
  reinterpret_cast<U2*>(&pairs[quant_block / 2])[quant_block % 2] =
      pack_pairs(block, quant_block % 8 * kQuantBlock, 0);
  const auto bits = planes.take<U2>(quant_blocks / 2);
  reinterpret_cast<uint32_t*>(&bits[quant_block / 2])[quant_block % 2] =
      pack_bits(block, quant_block % 8 * kQuantBlock, 2);
  if (quant_block % 8 != 0) return;
  planes.take<PackedScales>(quant_blocks / 8)[quant_block / 8] =
      load_unaligned<PackedScales>(block.scales);
  planes.take<half>(quant_blocks / 8)[quant_block / 8] = block.d;
}

template <class Block>  // Q4_K and Q5_K
__device__ __forceinline__ U4 k_header(const Block& block) {
  const Half2 d{block.d, block.dmin};
  const auto scales = load_unaligned<PackedScales>(block.scales);
  return U4{__builtin_bit_cast(uint32_t, d), scales.word[0], scales.word[1], scales.word[2]};
}

__device__ __forceinline__ void repack(const gguf::BlockQ4_K& block, PlanesOut planes,
                                       int quant_blocks, int quant_block) {
  planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, quant_block % 8 * kQuantBlock);
  if (quant_block % 8 == 0) planes.take<U4>(quant_blocks / 8)[quant_block / 8] = k_header(block);
}

__device__ __forceinline__ void repack(const gguf::BlockQ5_K& block, PlanesOut planes,
                                       int quant_blocks, int quant_block) {
  planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, quant_block % 8 * kQuantBlock);
  const auto bits = planes.take<U2>(quant_blocks / 2);
  reinterpret_cast<uint32_t*>(&bits[quant_block / 2])[quant_block % 2] =
      pack_bits(block, quant_block % 8 * kQuantBlock, 4);
  if (quant_block % 8 == 0) planes.take<U4>(quant_blocks / 8)[quant_block / 8] = k_header(block);
}

__device__ __forceinline__ void repack(const gguf::BlockQ6_K& block, PlanesOut planes,
                                       int quant_blocks, int quant_block) {
  planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, quant_block % 8 * kQuantBlock);
  const auto pairs = planes.take<U4>(quant_blocks / 2);
  reinterpret_cast<U2*>(&pairs[quant_block / 2])[quant_block % 2] =
      pack_pairs(block, quant_block % 8 * kQuantBlock, 4);
  const auto scale = planes.take<uint32_t>(quant_blocks / 2);
  reinterpret_cast<uint16_t*>(&scale[quant_block / 2])[quant_block % 2] =
      load_unaligned<uint16_t>(block.scales + quant_block % 8 * 2);
  if (quant_block % 8 == 0) planes.take<half>(quant_blocks / 8)[quant_block / 8] = block.d;
}

__device__ __forceinline__ void repack(const gguf::BlockIQ4_XS& block, PlanesOut planes,
                                       int quant_blocks, int quant_block) {
  planes.take<U4>(quant_blocks)[quant_block] = pack_nibbles(block, quant_block % 8 * kQuantBlock);
  if (quant_block % 8 == 0)
    planes.take<U2>(quant_blocks / 8)[quant_block / 8] = load_unaligned<U2, 2>(&block);
}

// 32 values that are not quantised.
template <class T>
struct PlainUnit {
  static constexpr int kWeights = kQuantBlock;
  T values[kQuantBlock];
};

template <class T>
__device__ __forceinline__ void repack(const PlainUnit<T>& block, PlanesOut planes,
                                       int quant_blocks, int quant_block) {
  constexpr int kItems = sizeof(block) / sizeof(U4);
  const auto items = planes.take<U4>(kItems * quant_blocks);
  for (int i = 0; i < kItems; ++i) {
    items[kItems * quant_block + i] = reinterpret_cast<const U4*>(block.values)[i];
  }
}

template <class Block>
__device__ __forceinline__ void repack_matrix(const uint8_t* blocks, uint8_t* weight, int rows,
                                              int quant_blocks, int stored_rows, int first_row,
                                              int placing) {
  constexpr int kQuantBlocks = Block::kWeights / kQuantBlock;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kRepackThreads + threadIdx.x;
  if (index >= static_cast<int64_t>(rows) * quant_blocks) return;
  const int row = stored_row(first_row + static_cast<int>(index / quant_blocks), placing);
  const Block& block = reinterpret_cast<const Block*>(blocks)[index / kQuantBlocks];
  repack(block, PlanesOut(weight, stored_rows, row), quant_blocks,
         static_cast<int>(index % quant_blocks));
}

}  // namespace rf

// blocks: `rows` whole rows of a GGUF tensor, [rows, 32 * quant_blocks], of which the first is row
// `first_row` of the tensor (or, to stack tensors, of the stack). weight: a matrix of weights.h
// with `stored_rows` rows. placing: 0 to keep the order of rows, 1 and 2 to interleave the gate and
// up rows of a gated layer. Grid: ceil(rows * quant_blocks / 256), block 256.
#define RF_REPACK(name, Block)                                                               \
  extern "C" __global__ __launch_bounds__(rf::kRepackThreads) void rf_repack_##name(         \
      const uint8_t* __restrict__ blocks, uint8_t* __restrict__ weight, int rows,            \
      int quant_blocks, int stored_rows, int first_row, int placing) {                       \
    rf::repack_matrix<rf::Block>(blocks, weight, rows, quant_blocks, stored_rows, first_row, \
                                 placing);                                                   \
  }

RF_REPACK(f32, PlainUnit<float>)
RF_REPACK(f16, PlainUnit<rf::half>)
RF_REPACK(bf16, PlainUnit<rf::bf16>)
RF_REPACK(q8_0, gguf::BlockQ8_0)
RF_REPACK(q4_0, gguf::BlockQ4_0)
RF_REPACK(q4_1, gguf::BlockQ4_1)
RF_REPACK(q5_0, gguf::BlockQ5_0)
RF_REPACK(q5_1, gguf::BlockQ5_1)
RF_REPACK(q2_k, gguf::BlockQ2_K)
RF_REPACK(q3_k, gguf::BlockQ3_K)
RF_REPACK(q4_k, gguf::BlockQ4_K)
RF_REPACK(q5_k, gguf::BlockQ5_K)
RF_REPACK(q6_k, gguf::BlockQ6_K)
RF_REPACK(iq4_nl, gguf::BlockQ4_0)
RF_REPACK(iq4_xs, gguf::BlockIQ4_XS)
RF_REPACK(mxfp4, gguf::BlockMXFP4)
