#include "global_access.h"

#include <cstring>

#include "block.h"
#include "memory.h"
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
  const uint64_t wave = options().wave;
  return (earlier & kThreadMask) / wave != (now & kThreadMask) / wave;
}

bool all_have(const uint8_t* states, size_t size, uint8_t bits) {
  const uint64_t mask = 0x0101010101010101u * bits;
  for (; size >= 8; size -= 8, states += 8) {
    uint64_t word;
    std::memcpy(&word, states, 8);
    if ((word & mask) != mask) return false;
  }
  for (; size; size--, states++) {
    if ((*states & bits) != bits) return false;
  }
  return true;
}

std::string describe(uintptr_t address) {
  return memory().describe(reinterpret_cast<void*>(address));
}

// "at" the byte, or for one in the middle "that reach" it.
std::string span(size_t size, uintptr_t address, uintptr_t byte) {
  return format("%zu bytes %s %s", size, byte == address ? "at" : "that reach",
                describe(byte).c_str());
}

[[noreturn]] void refuse(uintptr_t address, size_t size, AccessKind kind) {
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

void check_order(BlockRunner& runner, uintptr_t address, size_t size, AccessKind kind) {
  if (*memory().page_writer(address) != runner.launch_number()) return;
  const uint64_t tag = writer_tag(runner, kind);
  const uint64_t* writers = memory().writer(address);
  for (size_t i = 0; i < size; i++) {
    const bool both_atomic =
        kind == AccessKind::kAtomic && (writers[i] & kThreadMask) == kAtomicWriter;
    if (both_atomic || !unordered(writers[i], tag)) continue;
    const auto block = static_cast<unsigned>(writers[i] >> kBlockShift & kBlockMask);
    const auto epoch = static_cast<uint32_t>(writers[i] >> kEpochShift & kEpochMask);
    const bool foreign = block != (runner.block_number() & kBlockMask);
    if (foreign && runner.visibility().shows(block, epoch, kEpochMask, runner.now())) continue;
    runner.stop(hipErrorLaunchFailure,
                format("%s %s, which block %u wrote in the same launch with nothing in between",
                       kind == AccessKind::kLoad ? "reads" : "writes",
                       describe(address + i).c_str(), block));
  }
}

void record_write(BlockRunner& runner, uintptr_t address, size_t size, AccessKind kind) {
  uint8_t* states = memory().state(address);
  uint64_t* writers = memory().writer(address);
  const uint64_t tag = writer_tag(runner, kind);
  for (size_t i = 0; i < size; i++) {
    states[i] |= kInitialised;
    writers[i] = tag;
  }
  memory().note_writer(address, runner.launch_number());
  memory().note_writer(address + size - 1, runner.launch_number());
}

}  // namespace

void check_global(uintptr_t address, size_t size, AccessKind kind) {
  static constexpr uint8_t kNeeded[] = {
      kReadable | kInitialised,
      kWritable,
      kReadable | kWritable | kInitialised,
  };
  BlockRunner& runner = block_runner();
  if (!all_have(memory().state(address), size, kNeeded[static_cast<int>(kind)])) {
    refuse(address, size, kind);
  }
  check_order(runner, address, size, kind);
  memory().note_use(address, size, kind != AccessKind::kLoad);
  if (kind != AccessKind::kLoad) record_write(runner, address, size, kind);
  if (kind == AccessKind::kStore) runner.visibility().store(runner.now());
  if (kind == AccessKind::kAtomic) runner.visibility().atomic(address, runner.now());
}

}  // namespace host
