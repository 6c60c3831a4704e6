// What tests ask of this platform beyond HIP.
#include <cstdlib>

#include "api.h"
#include "block.h"
#include "memory.h"
#include "options.h"

using namespace host;

namespace {

using Lock = std::lock_guard<std::mutex>;

// Offset of the range in its live allocation, or a finding.
Allocation* range(const char* call, void* pointer, size_t bytes) {
  Allocation* allocation = memory().find_live(pointer, bytes);
  if (!allocation) {
    report_call(format("%s of %zu bytes at %s", call, bytes, memory().describe(pointer).c_str()));
  }
  return allocation;
}

[[maybe_unused]] const bool leaks_are_reported = [] {
  if (!options().report_leaks) return false;
  std::atexit([] {
    if (const size_t count = memory().live_count()) {
      report_call(format("%zu buffers (%zu bytes) were never freed", count, memory().live_bytes()));
    }
  });
  return true;
}();

}  // namespace

HIP_API int rf_host_finding_count() { return finding_count(); }
HIP_API const char* rf_host_last_finding() { return last_finding(); }

HIP_API void rf_host_clear() {
  const Lock lock(library_mutex());
  streams().synchronize_all();
  clear_findings();
}

// access: 0 none, 1 read, 3 read and write. Kernels alone are bound by it.
HIP_API void rf_host_protect(void* pointer, size_t bytes, int access) {
  const Lock lock(library_mutex());
  if (!range("rf_host_protect", pointer, bytes)) return;
  memory().set_access(reinterpret_cast<uintptr_t>(pointer), bytes, static_cast<uint8_t>(access));
}

HIP_API void rf_host_mark_initialised(void* pointer, size_t bytes) {
  const Lock lock(library_mutex());
  if (!range("rf_host_mark_initialised", pointer, bytes)) return;
  memory().set_initialised(reinterpret_cast<uintptr_t>(pointer), bytes);
}

HIP_API void rf_host_label(void* pointer, size_t bytes, const char* name) {
  const Lock lock(library_mutex());
  Allocation* allocation = range("rf_host_label", pointer, bytes);
  if (allocation) {
    allocation->labels[reinterpret_cast<uintptr_t>(pointer) - allocation->begin] = name;
  }
}

HIP_API void rf_host_set_lane_order(const char* name, unsigned seed) {
  const Lock lock(library_mutex());
  options().order = lane_order_named(name);
  options().seed = seed;
}

HIP_API void rf_host_set_stale_replays(int after) {
  const Lock lock(library_mutex());
  options().stale_replays = after;
}

HIP_API void rf_host_set_watched(int launches) {
  const Lock lock(library_mutex());
  options().watched = launches;
  block_runner().forget_launches();
}

HIP_API size_t rf_host_live_bytes() {
  const Lock lock(library_mutex());
  return memory().live_bytes();
}
