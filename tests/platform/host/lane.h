// A lane of a kernel: a fiber with its own stack.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rf/platform/host_abi.h"

namespace host {

// A stack, and what lies in front of it and nothing may touch: as much as one frame could skip.
inline constexpr size_t kStackGuardBytes = 1 << 20, kStackBytes = 256 << 10;

// What a lane has stopped for. Ready lanes have not stopped.
enum class Wait : uint8_t {
  kReady,
  kBarrier,
  kWaveSync,
  kShuffle,
  kBallot,
  kUniform,
  kCompute,
  kDone
};

const char* name_of(Wait wait);

enum class AccessKind { kLoad, kStore, kAtomic };

// A moment in the life of a block, as one lane sees it. Epochs count barriers and never go back,
// so what an earlier block left behind is recognised without clearing anything.
struct Moment {
  uint32_t epoch = 0;
  uint16_t wave_epoch = 0;  // counts wave_sync() within the epoch
  uint16_t thread = 0;
};

struct Lane {
  Wait wait = Wait::kDone;
  const char* file = "";  // where it has stopped
  int line = 0;
  uint64_t value = 0;  // what it brings to a wave operation, then what it takes from it
  int source_lane = 0;
  void* operands = nullptr;
  RfHostCompute compute = nullptr;

  RfHostLane* info = nullptr;  // at the upper end of the stack
  void* stack_pointer = nullptr;
  uintptr_t stack_begin = 0, stack_end = 0;
};

// Gives the lane a stack, unless it has one.
void make_stack(Lane& lane, int index);

// Prepares the lane to begin `entry` when it is switched to.
void start_at(Lane& lane, void (*entry)());

}  // namespace host

// Saves the running context's stack pointer and continues the other context.
extern "C" void rf_host_switch(void** save, void* to);
