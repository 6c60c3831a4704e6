// The matrix instructions of NVIDIA GPUs, as the PTX ISA describes them: "Matrix Fragments for
// mma.m16n8k16", "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
#include <cmath>

#include "async.h"
#include "module.h"
#include "report.h"
#include "shared_access.h"

namespace host {
namespace {

constexpr int kK = 16;      // of an instruction
constexpr int kChunks = 2;  // of a column of B, in its K
constexpr int kChunkBytes = kK / kChunks * 2;
constexpr int kRows = 16;  // of a wave

using Half = _Float16;

float half_of(uint32_t word, int which) {
  return static_cast<float>(__builtin_bit_cast(Half, static_cast<uint16_t>(word >> 16 * which)));
}

// Registers of A: a0 has row g and elements 2 t and 2 t + 1 of K, where g = lane / 4 and
// t = lane % 4; a1 has row g + 8, and a2 and a3 have elements 8 further.
void take_a(float (&a)[kRows][kK], int lane, const uint32_t* words) {
  for (int i = 0; i < 8; i++) {
    a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i % 2 + i / 4 * 8] = half_of(words[i / 2], i % 2);
  }
}

// Adds the products with eight columns: c0 and c1 have row g, columns 2 t and 2 t + 1, c2 and c3
// row g + 8.
void add(float* c, int lane, const float (&a)[kRows][kK], const float (*b)[kK]) {
  for (int i = 0; i < 4; i++) {
    const float* row = a[lane / 4 + i / 2 * 8];
    const float* column = b[lane % 4 * 2 + i % 2];
    for (int k = 0; k < kK; k++) c[i] += row[k] * column[k];
  }
}

struct MmaOperands {
  float* c;
  const uint32_t *a, *b;
};

void mma(void* const* operands, int lanes) {
  float a[kRows][kK], b[8][kK];
  for (int lane = 0; lane < lanes; lane++) {
    const auto& own = *static_cast<MmaOperands*>(operands[lane]);
    take_a(a, lane, own.a);
    for (int i = 0; i < 4; i++) {
      b[lane / 4][lane % 4 * 2 + i % 2 + i / 2 * 8] = half_of(own.b[i / 2], i % 2);
    }
  }
  for (int lane = 0; lane < lanes; lane++) {
    add(static_cast<MmaOperands*>(operands[lane])->c, lane, a, b);
  }
}

// Where eight elements of a column of B lie. The swizzle exchanges chunks of 128 bytes.
uintptr_t chunk_of(const RfHostTile& tile, int column, int chunk) {
  const auto begin = reinterpret_cast<uintptr_t>(tile.begin);
  if (!tile.is_swizzled) return begin + tile.offset + chunk * tile.next + column * kChunkBytes;
  const uintptr_t at = tile.offset + column * 128 + chunk * kChunkBytes;
  return begin + (at ^ (at >> 7 & 7) << 4);
}

// Has the matrix unit read a chunk; false if this block has not written all of it.
bool read_chunk(uintptr_t address) {
  BlockRunner& runner = block_runner();
  SharedMemory* shared = runner.launch().module->shared_at(address);
  if (!shared || !shared->has_arrays()) {
    runner.stop(hipErrorIllegalAddress, "multiplies what is not in LDS");
  }
  Moment now = runner.now();
  now.thread = kSeveral;
  if (!shared->has(address, kChunkBytes)) {
    refuse_shared(*shared, address, kChunkBytes, AccessKind::kLoad, now);
  }
  if (!shared->is_written(address, kChunkBytes, runner.first_epoch())) return false;
  if (!shared->access(address, kChunkBytes, AccessKind::kLoad, now, runner.first_epoch())) {
    refuse_shared(*shared, address, kChunkBytes, AccessKind::kLoad, now);
  }
  for (uintptr_t word = address; word != address + kChunkBytes; word += 4) {
    const uint16_t writer = shared->writer(word);
    if (runner.async().is_published(writer, shared->stored_at(word), now)) continue;
    runner.stop(hipErrorLaunchFailure,
                format("multiplies %s, which thread %d had not published before the last barrier",
                       shared->at(word).c_str(), writer));
  }
  return true;
}

// Looks at the chunks of B of which this lane is in charge.
void read_chunks(AsyncProduct& product) {
  const int lane = block_runner().lane().info->lane;
  product.missing = 0;
  for (int i = 0; lane + i * 32 < product.columns * kChunks; i++) {
    const int index = lane + i * 32;
    const uintptr_t address = chunk_of(product.b, index / kChunks, index % kChunks);
    if (!read_chunk(address)) product.missing |= uint32_t{1} << i;
  }
}

void multiply(void* const* operands, int lanes) {
  const auto product = [&](int lane) -> AsyncProduct& {
    return *static_cast<AsyncProduct*>(operands[lane]);
  };
  float a[kRows][kK];
  for (int lane = 0; lane < lanes; lane++) take_a(a, lane, product(lane).a);
  const int columns = product(0).columns;
  for (int first = 0; first < columns; first += 8) {
    float b[8][kK];
    for (int i = 0; i < 8 * kChunks; i++) {
      const int index = first * kChunks + i;
      const bool is_missing = product(index % 32).missing >> index / 32 & 1;
      const auto* chunk =
          reinterpret_cast<const Half*>(chunk_of(product(0).b, index / kChunks, index % kChunks));
      for (int k = 0; k < kK / kChunks; k++) {
        // What nothing has written may be anything.
        b[i / kChunks][i % kChunks * 8 + k] = is_missing ? NAN : static_cast<float>(chunk[k]);
      }
    }
    for (int lane = 0; lane < lanes; lane++) add(product(lane).sums + first / 2, lane, a, b);
  }
}

AsyncWork::OfLane& own_lane() { return block_runner().async().of(block_runner().now()); }

}  // namespace
}  // namespace host

HIP_API void rf_host_mma(float* c, const uint32_t* a, const uint32_t* b, const char* file,
                         int line) {
  MmaOperands operands{c, a, b};
  block_runner().wait_for_compute(&operands, mma, file, line);
}

HIP_API void rf_host_warpgroup_begin() { own_lane().has_begun_products = true; }

HIP_API void rf_host_warpgroup_multiply(float* sums, const uint32_t* a, const RfHostTile* b,
                                        int columns, const char* file, int line) {
  BlockRunner& runner = block_runner();
  runner.at_instruction(__builtin_return_address(0));
  if (!own_lane().has_begun_products) {
    runner.stop(hipErrorLaunchFailure, "multiplies without a fence since the last group");
  }
  // All lanes name the same tile.
  runner.wait(Wait::kUniform, file, line, chunk_of(*b, 0, 0));
  AsyncProduct product{sums, a, *b, columns, 0};
  read_chunks(product);
  own_lane().products.begin(product);
}

HIP_API void rf_host_warpgroup_commit() {
  own_lane().products.commit();
  own_lane().has_begun_products = false;
}

HIP_API void rf_host_warpgroup_wait(int groups, const char* file, int line) {
  BlockRunner& runner = block_runner();
  runner.at_instruction(__builtin_return_address(0));
  AsyncProduct product;
  while (own_lane().products.take(groups, product)) {
    read_chunks(product);
    runner.wait_for_compute(&product, multiply, file, line);
  }
}

HIP_API void rf_host_warpgroup_publish() { block_runner().async().publish(block_runner().now()); }
