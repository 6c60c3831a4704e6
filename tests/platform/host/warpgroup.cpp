// The matrix instructions of NVIDIA GPUs, as the PTX ISA describes them: "Matrix Fragments for
// mma.m16n8k16", "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
#include <algorithm>
#include <cmath>

#include "async.h"
#include "module.h"
#include "report.h"
#include "shared_access.h"

namespace host {
namespace {

constexpr int kK = 16;  // of an instruction
constexpr int kChunkBytes = 16;
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

// Where the chunk is that holds elements `element` and following of a row, eight or as many as are
// left of them. The swizzle exchanges chunks of 128 bytes.
uintptr_t chunk_of(const RfHostTile& tile, int row, int element) {
  const auto begin = reinterpret_cast<uintptr_t>(tile.begin);
  if (!tile.is_swizzled) return begin + tile.offset + element / 8 * tile.next + row * kChunkBytes;
  const uintptr_t at = tile.offset + element / 64 * tile.next + row * 128 + element % 64 * 2;
  return begin + (at ^ (at >> 7 & 7) << 4);
}

// Chunk `index` of b: of a column, or transposed, of an element of K.
uintptr_t b_chunk(const RfHostProduct& product, int index) {
  const int chunks = product.is_transposed ? product.columns / 8 : kK / 8;
  return chunk_of(product.b, index / chunks, index % chunks * 8);
}

// Those of the rows of this wave of four, one for each lane.
uintptr_t a_chunk(const RfHostProduct& product, int wave, int lane) {
  return chunk_of(product.a_tile, wave % 4 * kRows + lane / 2, lane % 2 * 8);
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
  if (!shared->holds(address, kChunkBytes)) {
    refuse_shared(*shared, address, kChunkBytes, AccessKind::kLoad, now);
  }
  if (!runner.watches_lds()) return true;  // what was written is not known
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

int own_wave() { return wave_of(block_runner().now().thread); }

// Looks at the chunks of which this lane is in charge.
void read_chunks(AsyncProduct& own) {
  const int lane = block_runner().lane().info->lane;
  own.misses_a = !own.product.a && !read_chunk(a_chunk(own.product, own_wave(), lane));
  own.missing_b = 0;
  for (int i = 0; lane + i * 32 < own.product.columns * 2; i++) {
    if (!read_chunk(b_chunk(own.product, lane + i * 32))) own.missing_b |= uint32_t{1} << i;
  }
}

// What nothing has written may be anything.
void take_chunk(float (&values)[8], uintptr_t address, bool is_missing) {
  for (int i = 0; i < 8; i++) {
    values[i] = is_missing ? NAN : static_cast<float>(reinterpret_cast<const Half*>(address)[i]);
  }
}

void multiply(void* const* operands, int lanes) {
  const auto of = [&](int lane) -> const AsyncProduct& {
    return *static_cast<const AsyncProduct*>(operands[lane]);
  };
  const RfHostProduct& product = of(0).product;
  float a[kRows][kK], chunk[8];
  for (int lane = 0; lane < lanes; lane++) {
    if (product.a) {
      take_a(a, lane, of(lane).product.a);
    } else {
      take_chunk(chunk, a_chunk(product, own_wave(), lane), of(lane).misses_a);
      std::copy_n(chunk, 8, &a[lane / 2][lane % 2 * 8]);
    }
  }
  static float b[256][kK];
  for (int index = 0; index < product.columns * 2; index++) {
    take_chunk(chunk, b_chunk(product, index), of(index % 32).missing_b >> index / 32 & 1);
    for (int i = 0; i < 8; i++) {
      if (product.is_transposed) {
        b[index % (product.columns / 8) * 8 + i][index / (product.columns / 8)] = chunk[i];
      } else {
        b[index / 2][index % 2 * 8 + i] = chunk[i];
      }
    }
  }
  for (int lane = 0; lane < lanes; lane++) {
    float* sums = of(lane).product.sums;
    if (!product.adds) std::fill_n(sums, product.columns / 2, 0.0f);
    for (int first = 0; first < product.columns; first += 8) {
      add(sums + first / 2, lane, a, b + first);
    }
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

HIP_API void rf_host_warpgroup_multiply(const RfHostProduct* product, const char* file, int line) {
  BlockRunner& runner = block_runner();
  runner.at_instruction(__builtin_return_address(0));
  if (!own_lane().has_begun_products) {
    runner.stop(hipErrorLaunchFailure, "multiplies without a fence since it last waited");
  }
  // All lanes name the same tiles.
  runner.wait(Wait::kUniform, file, line, b_chunk(*product, 0));
  if (!product->a) runner.wait(Wait::kUniform, file, line, chunk_of(product->a_tile, 0, 0));
  AsyncProduct own{*product, false, 0};
  read_chunks(own);
  own_lane().products.begin(own);
}

HIP_API void rf_host_warpgroup_commit() { own_lane().products.commit(); }

HIP_API void rf_host_warpgroup_wait(int groups, const char* file, int line) {
  BlockRunner& runner = block_runner();
  runner.at_instruction(__builtin_return_address(0));
  AsyncProduct own;
  while (own_lane().products.take(groups, own)) {
    read_chunks(own);
    runner.wait_for_compute(&own, multiply, file, line);
  }
  own_lane().has_begun_products = false;  // registers may change now
}

HIP_API void rf_host_warpgroup_publish() { block_runner().async().publish(block_runner().now()); }
