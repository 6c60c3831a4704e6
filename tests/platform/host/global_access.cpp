#include "global_access.h"

#include "options.h"
#include "report.h"

namespace host {
namespace {

// Who wrote a byte last: launch (16 bits), block (20), epoch (17) and thread (11).
constexpr int kLaunchShift = 48, kBlockShift = 28, kEpochShift = 11;
constexpr uint64_t kBlockMask = (1 << 20) - 1, kEpochMask = (1 << 17) - 1, kThreadMask = 0x7FF;
constexpr uint64_t kAtomicWriter = kThreadMask;  // in place of the thread

uint64_t writer_tag(const BlockRunner& runner, AccessKind kind) {
  const Moment now = runner.now();
  return uint64_t{runner.launch_number()} << kLaunchShift |
         (runner.block_number() & kBlockMask) << kBlockShift |
         (now.epoch & kEpochMask) << kEpochShift |
         (kind == AccessKind::kAtomic ? kAtomicWriter : now.thread);
}

// Nothing orders the blocks of a launch; barriers order the waves of a block; the lanes of one wave
// are left to themselves.
bool unordered(uint64_t earlier, uint64_t now) {
  if (earlier >> kLaunchShift != now >> kLaunchShift) return false;
  if (earlier >> kBlockShift != now >> kBlockShift) return true;
  if (earlier >> kEpochShift != now >> kEpochShift) return false;
  const int shift = options().wave_shift;
  return (earlier & kThreadMask) >> shift != (now & kThreadMask) >> shift;
}

std::string describe(uintptr_t address) {
  return memory().describe(reinterpret_cast<void*>(address));
}

// "at" the byte, or for one in the middle "that reach" it.
std::string span(size_t size, uintptr_t address, uintptr_t byte) {
  return format("%zu bytes %s %s", size, byte == address ? "at" : "that reach",
                describe(byte).c_str());
}

}  // namespace

void refuse_global(uintptr_t address, size_t size, AccessKind kind) {
  BlockRunner& runner = block_runner();
  const char* verb = kind == AccessKind::kLoad ? "reads" : "writes";
  const uint8_t access = kind == AccessKind::kLoad    ? kReadable
                         : kind == AccessKind::kStore ? kWritable
                                                      : kReadable | kWritable;
  uintptr_t at = address;
  while (at < address + size && (*memory().state(at) & access) == access) at++;
  if (at < address + size) {
    const bool inside = memory().find_live(reinterpret_cast<void*>(at), 1) != nullptr;
    runner.stop(hipErrorIllegalAddress, format("%s %s%s", verb, span(size, address, at).c_str(),
                                               inside ? ": this range is closed to kernels" : ""));
  }
  at = address;
  while (*memory().state(at) & kInitialised) at++;
  runner.stop(hipErrorIllegalAddress,
              format("reads %s: nothing has been written there", span(size, address, at).c_str()));
}

void check_order(uintptr_t address, size_t size, AccessKind kind) {
  BlockRunner& runner = block_runner();
  const uint64_t tag = writer_tag(runner, kind);
  const uint64_t* writers = memory().writer(address);
  for (size_t i = 0; i < size; i++) {
    if (i && writers[i] == writers[i - 1]) continue;
    const bool both_atomic =
        kind == AccessKind::kAtomic && (writers[i] & kThreadMask) == kAtomicWriter;
    if (both_atomic || !unordered(writers[i], tag)) continue;
    const auto block = static_cast<unsigned>(writers[i] >> kBlockShift & kBlockMask);
    const auto epoch = static_cast<uint32_t>(writers[i] >> kEpochShift & kEpochMask);
    const bool foreign = block != (runner.block_number() & kBlockMask);
    if (foreign && runner.visibility().shows(block, epoch, kEpochMask, runner.now())) continue;
    if (foreign && kind == AccessKind::kStore && runner.alike().note(address, size)) continue;
    runner.stop(hipErrorLaunchFailure,
                format("%s %s, which block %u wrote in the same launch with nothing in between",
                       kind == AccessKind::kLoad ? "reads" : "writes",
                       describe(address + i).c_str(), block));
  }
}

void record_write(uintptr_t address, size_t size, AccessKind kind) {
  BlockRunner& runner = block_runner();
  uint8_t* states = memory().state(address);
  uint64_t* writers = memory().writer(address);
  const uint64_t tag = writer_tag(runner, kind);
  for (size_t i = 0; i < size; i++) {
    states[i] |= kInitialised;
    writers[i] = tag;
  }
  const bool first = memory().note_writer(address, runner.launch_number());
  const bool last = memory().note_writer(address + size - 1, runner.launch_number());
  if (first || last) runner.known_reads().forget_global();
  if (kind == AccessKind::kStore) runner.visibility().store(runner.now());
  if (kind == AccessKind::kAtomic) runner.visibility().atomic(address, runner.now());
}

}  // namespace host
