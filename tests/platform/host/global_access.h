// The rules for loads and stores of global memory by kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "block.h"
#include "memory.h"

namespace host {

// Whether each of these states has all of the bits.
[[gnu::always_inline]] inline bool all_have(const uint8_t* states, size_t size, uint8_t bits) {
  const uint64_t mask = 0x0101010101010101u * bits;
  const auto has = [&](auto word) {
    std::memcpy(&word, states, sizeof word);
    return (word & static_cast<decltype(word)>(mask)) == static_cast<decltype(word)>(mask);
  };
  for (; size >= 8; size -= 8, states += 8) {
    if (!has(uint64_t{})) return false;
  }
  if (size == 4) return has(uint32_t{});
  for (; size; size--, states++) {
    if (!has(uint8_t{})) return false;
  }
  return true;
}

[[noreturn, gnu::noinline]] void refuse_global(uintptr_t address, size_t size, AccessKind kind);
// Ends the launch with a finding if others have written this before, with nothing in between.
[[gnu::noinline]] void check_order(uintptr_t address, size_t size, AccessKind kind);
void record_write(uintptr_t address, size_t size, AccessKind kind);

// Ends the launch with a finding if the running lane may not do this, else records it.
// The address lies in the arena. Inlined, as sizes and kinds are constants where it is called.
[[gnu::always_inline]] inline void check_global(uintptr_t address, size_t size, AccessKind kind) {
  const uint8_t needed = kind == AccessKind::kLoad    ? kReadable | kInitialised
                         : kind == AccessKind::kStore ? kWritable
                                                      : kReadable | kWritable | kInitialised;
  if (!all_have(memory().state(address), size, needed)) refuse_global(address, size, kind);
  if (memory().page(address).writer == block_runner().launch_number()) {
    check_order(address, size, kind);
  } else if (kind == AccessKind::kLoad) {
    // Of a page that the launch has not written to, a granule may be read by all or by none.
    constexpr size_t kGranule = KnownReads::kGranule;
    const uintptr_t granule = address / kGranule * kGranule;
    if (all_have(memory().state(granule), kGranule, needed)) {
      memory().note_use(granule, kGranule, false);
      block_runner().known_reads().note_global(address);
      if (address + size <= granule + kGranule) return;
    }
  }
  memory().note_use(address, size, kind != AccessKind::kLoad);
  if (kind != AccessKind::kLoad) record_write(address, size, kind);
}

}  // namespace host
