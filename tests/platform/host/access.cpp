// Every load and store of a kernel, before it happens, and what clang knows about its own types.
// The names are those that code compiled with the address and undefined behaviour sanitizers
// calls; nothing of the sanitizers' own run time is linked.
#include "block.h"
#include "global_access.h"
#include "memory.h"
#include "module.h"
#include "report.h"
#include "shared_access.h"

namespace host {
namespace {

[[noreturn]] void refuse_foreign(uintptr_t address, size_t size, bool writes) {
  BlockRunner& runner = block_runner();
  const char* verb = writes ? "writes" : "reads";
  if (runner.launch().module->is_constant(address)) {
    runner.stop(hipErrorIllegalAddress, format("writes a constant of its own code"));
  }
  if (runner.launch().module->shared_at(address)) {
    runner.stop(hipErrorIllegalAddress,
                format("%s %zu bytes of a variable that is no shared array, or of one aligned to "
                       "more than 32 bytes, which cannot be watched",
                       verb, size));
  }
  runner.stop(hipErrorIllegalAddress, format("%s %zu bytes at %p, which is no memory of the device",
                                             verb, size, reinterpret_cast<void*>(address)));
}

// What is no memory of the device, of the block or of the lane.
[[gnu::noinline]] void check_foreign(uintptr_t address, size_t size, bool writes) {
  BlockRunner& runner = block_runner();
  if (!runner.running()) return;  // a constructor of a kernel library
  if (writes || !runner.launch().module->is_constant(address)) {
    refuse_foreign(address, size, writes);
  }
}

// An access to what is not on the lane's stack.
[[gnu::always_inline]] inline void check_elsewhere(uintptr_t address, size_t size, bool writes) {
  const BlockRunner& runner = block_runner();
  const AccessKind kind = writes ? AccessKind::kStore : AccessKind::kLoad;
  if (memory().in_arena(address)) {
    check_global(address, size, kind);
    return;
  }
  SharedMemory* shared = runner.running() ? runner.launch().module->shared_at(address) : nullptr;
  if (shared && shared->has_arrays()) {
    check_shared(*shared, address, size, kind);
  } else {
    check_foreign(address, size, writes);
  }
}

template <size_t kSize, bool kWrites>
[[gnu::noinline]] void check_fixed(uintptr_t address) {
  check_elsewhere(address, kSize, kWrites);
}

void check(uintptr_t address, size_t size, bool writes) {
  if (!block_runner().on_own_stack(address)) check_elsewhere(address, size, writes);
}

// The beginning of what the undefined behaviour sanitizer passes: where in the source.
struct SourceLocation {
  const char* file;
  uint32_t line, column;
};

struct TypeDescriptor {
  uint16_t kind, info;
  char name[1];
};

struct OutOfBounds {
  SourceLocation location;
  const TypeDescriptor *array, *index;
};

struct TypeMismatch {
  SourceLocation location;
  const TypeDescriptor* type;
  unsigned char log_alignment, kind;
};

[[noreturn]] void stop_in_source(const SourceLocation& location, const std::string& what) {
  block_runner().at_instruction(nullptr);
  block_runner().stop(hipErrorLaunchFailure,
                      format("%s (%s:%u)", what.c_str(), location.file, location.line));
}

}  // namespace
}  // namespace host

using namespace host;

// The instruction that called the entry point.
#define FROM_CALLER() block_runner().at_instruction(__builtin_return_address(0))

// A function of its own for what is not on the stack: the many accesses to that save no registers.
#define CHECKED_ACCESS(size)                                                          \
  HIP_API void __asan_load##size(uintptr_t address) {                                 \
    FROM_CALLER();                                                                    \
    BlockRunner& runner = block_runner();                                             \
    if (runner.on_own_stack(address)) return;                                         \
    if (!runner.known_reads().hold(address, size)) check_fixed<size, false>(address); \
  }                                                                                   \
  HIP_API void __asan_store##size(uintptr_t address) {                                \
    FROM_CALLER();                                                                    \
    if (!block_runner().on_own_stack(address)) check_fixed<size, true>(address);      \
  }

CHECKED_ACCESS(1)
CHECKED_ACCESS(2)
CHECKED_ACCESS(4)
CHECKED_ACCESS(8)
CHECKED_ACCESS(16)

HIP_API void __asan_loadN(uintptr_t address, size_t size) {
  FROM_CALLER();
  check(address, size, false);
}

HIP_API void __asan_storeN(uintptr_t address, size_t size) {
  FROM_CALLER();
  check(address, size, true);
}

HIP_API void* __asan_memcpy(void* to, const void* from, size_t size) {
  FROM_CALLER();
  if (size) {
    check(reinterpret_cast<uintptr_t>(from), size, false);
    check(reinterpret_cast<uintptr_t>(to), size, true);
  }
  return __builtin_memcpy(to, from, size);
}

HIP_API void* __asan_memset(void* to, int value, size_t size) {
  FROM_CALLER();
  if (size) check(reinterpret_cast<uintptr_t>(to), size, true);
  return __builtin_memset(to, value, size);
}

HIP_API void* __asan_memmove(void* to, const void* from, size_t size) {
  FROM_CALLER();
  if (size) {
    check(reinterpret_cast<uintptr_t>(from), size, false);
    check(reinterpret_cast<uintptr_t>(to), size, true);
  }
  return __builtin_memmove(to, from, size);
}

HIP_API void __asan_handle_no_return() {}

HIP_API void rf_host_atomic(const void* pointer, int bytes) {
  FROM_CALLER();
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const auto size = static_cast<size_t>(bytes);
  if (memory().in_arena(address)) {
    check_global(address, size, AccessKind::kAtomic);
  } else if (SharedMemory* shared = block_runner().launch().module->shared_at(address)) {
    check_shared(*shared, address, size, AccessKind::kAtomic);
  } else {
    refuse_foreign(address, size, true);
  }
}

HIP_API void __ubsan_handle_out_of_bounds_abort(const OutOfBounds* data, uintptr_t index) {
  stop_in_source(data->location,
                 format("uses index %ld of %s", static_cast<long>(index), data->array->name));
}

HIP_API void __ubsan_handle_type_mismatch_v1_abort(const TypeMismatch* data, uintptr_t pointer) {
  const size_t alignment = size_t{1} << data->log_alignment;
  if (pointer == 0) stop_in_source(data->location, "uses a null pointer");
  stop_in_source(data->location, format("uses %s as a %s, whose address must be a multiple of %zu",
                                        memory().describe(reinterpret_cast<void*>(pointer)).c_str(),
                                        data->type->name, alignment));
}

HIP_API void __ubsan_handle_divrem_overflow_abort(const SourceLocation* location, uintptr_t,
                                                  uintptr_t) {
  stop_in_source(*location, "divides an integer by zero");
}

HIP_API void __ubsan_handle_shift_out_of_bounds_abort(const SourceLocation* location, uintptr_t,
                                                      uintptr_t) {
  stop_in_source(*location, "shifts by more bits than there are, or a bit out of a signed number");
}

HIP_API void __ubsan_handle_alignment_assumption_abort(const SourceLocation* location, uintptr_t,
                                                       uintptr_t, uintptr_t) {
  stop_in_source(*location, "uses an address that is less aligned than the code says");
}
