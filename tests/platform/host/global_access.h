// The rules for loads and stores of global memory by kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace host {

enum class AccessKind { kLoad, kStore, kAtomic };

// Ends the launch with a finding if the running lane may not do this, else records it.
// The address lies in the arena.
void check_global(uintptr_t address, size_t size, AccessKind kind);

}  // namespace host
