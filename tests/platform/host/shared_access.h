// Loads and stores of LDS by lanes, as they happen.
#pragma once

#include <cstddef>
#include <cstdint>

#include "block.h"
#include "lds.h"

namespace host {

// Ends the launch with what is wrong with an access.
[[noreturn, gnu::noinline]] void refuse_shared(const SharedMemory& shared, uintptr_t address,
                                               size_t size, AccessKind kind, Moment now);

// Ends the launch with a finding if the running lane may not do this, else records it.
[[gnu::always_inline]] inline void check_shared(SharedMemory& shared, uintptr_t address,
                                                size_t size, AccessKind kind) {
  BlockRunner& runner = block_runner();
  const bool allowed = runner.watches_lds()
                           ? shared.access(address, size, kind, runner.now(), runner.first_epoch())
                           : shared.holds(address, size);
  if (!allowed) {
    refuse_shared(shared, address, size, kind, runner.now());
  }
  if (!runner.watches_lds()) {
    const SharedArray& array = shared.found_array();
    runner.known_reads().note_shared(address, array.begin, array.size);
  }
  if (runner.async().watches_stores() && kind != AccessKind::kLoad) {
    shared.note_store(address, size, runner.async().time());
  }
}

}  // namespace host
