// From the blocks of a GGUF file to the layout of weights.h, once, when a model is loaded.
#include "rf/weights/formats.h"

namespace rf {

inline constexpr int kRepackThreads = 256;

// Which stored row a row of the file becomes: itself, or its place in a gated layer's matrix.
enum Placing { kAsIs = 0, kAsGate = 1, kAsUp = 2 };

__device__ __forceinline__ int stored_row(int row, int placing) {
  if (placing == kAsIs) return row;
  return row / kGateRows * kRowAlign + row % kGateRows + (placing == kAsUp ? kGateRows : 0);
}

// kBlockWeights and kBlockBytes are of the format's declaration; plain numbers are blocks of one.
template <class Format, int kBlockWeights, int kBlockBytes>
__device__ __forceinline__ void repack_matrix(const uint8_t* blocks, uint8_t* weight, int rows,
                                              int quant_blocks, int stored_rows, int first_row,
                                              int matrix_rows, int placing) {
  using Block = typename Format::Block;
  constexpr int kQuantBlocks = Block::kWeights / kQuantBlock;
  static_assert(Block::kWeights == (kBlockWeights == 1 ? kQuantBlock : kBlockWeights));
  if constexpr (Quantised<Format>) {
    static_assert(Format::kQuantBlocks == (kBlockWeights == 32 ? 1 : 2));
  }
  static_assert(sizeof(Block) == kBlockBytes * (Block::kWeights / kBlockWeights));
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kRepackThreads + threadIdx.x;
  if (index >= static_cast<int64_t>(rows) * quant_blocks) return;
  const int64_t matrix_bytes =
      static_cast<int64_t>(stored_rows) * (quant_blocks / kQuantBlocks) * sizeof(Block);
  const int from = first_row + static_cast<int>(index / quant_blocks);
  uint8_t* matrix = weight + from / matrix_rows * matrix_bytes;
  const int row = stored_row(from % matrix_rows, placing);
  const Block& block = reinterpret_cast<const Block*>(blocks)[index / kQuantBlocks];
  Format::repack(block, PlanesOut(matrix, stored_rows, row), quant_blocks,
                 static_cast<int>(index % quant_blocks));
}

}  // namespace rf

// blocks: `rows` whole rows of a GGUF tensor, [rows, 32 * quant_blocks], of which the first is row
// `first_row` of the tensor (or, to stack tensors, of the stack). weight: a matrix of weights.h
// with `stored_rows` rows, or several, one after the other: of each `matrix_rows` rows of the
// tensor one is made. placing: 0 to keep the order of rows, 1 and 2 to interleave the gate and up
// rows of a gated layer. Grid: ceil(rows * quant_blocks / 256), block 256.
#define RF_REPACK(name, Format, block_weights, block_bytes)                                \
  extern "C" __global__ __launch_bounds__(rf::kRepackThreads) void rf_repack_##name(       \
      const uint8_t* __restrict__ blocks, uint8_t* __restrict__ weight, int rows,          \
      int quant_blocks, int stored_rows, int first_row, int matrix_rows, int placing) {    \
    rf::repack_matrix<rf::Format, block_weights, block_bytes>(                             \
        blocks, weight, rows, quant_blocks, stored_rows, first_row, matrix_rows, placing); \
  }
RF_FORMATS(RF_REPACK)
