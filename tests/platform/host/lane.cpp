#include "lane.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

// The callee-saved registers of the System V ABI; everything else the caller has saved.
asm(R"(
.text
.globl rf_host_switch
.hidden rf_host_switch
.type rf_host_switch, @function
rf_host_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size rf_host_switch, . - rf_host_switch
)");

namespace host {
namespace {

constexpr int kSavedRegisters = 6;

}  // namespace

const char* name_of(Wait wait) {
  switch (wait) {
    case Wait::kReady: return "running";
    case Wait::kBarrier: return "__syncthreads()";
    case Wait::kWaveSync: return "wave_sync()";
    case Wait::kShuffle: return "a shuffle";
    case Wait::kBallot: return "ballot()";
    case Wait::kUniform: return "uniform()";
    case Wait::kCompute: return "a matrix instruction";
    case Wait::kDone: return "the end of the kernel";
  }
  return "";
}

void make_stack(Lane& lane, int index) {
  if (lane.stack_begin) return;
  void* memory = mmap(nullptr, kStackGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kStackGuardBytes, PROT_NONE)) {
    std::perror("host platform: stack of a lane");
    std::abort();
  }
  lane.stack_begin = reinterpret_cast<uintptr_t>(memory) + kStackGuardBytes;
  lane.stack_end = lane.stack_begin + kStackBytes;
  // Stacks at equal offsets of their pages would compete for the same lines of the cache.
  const size_t stagger = static_cast<size_t>(index) * 704 % 16384;
  lane.info = reinterpret_cast<RfHostLane*>(lane.stack_end - stagger - sizeof(RfHostLane));
}

void start_at(Lane& lane, void (*entry)()) {
  // The frame rf_host_switch will pop, then `entry`, then a return address it must not use.
  auto top = reinterpret_cast<uintptr_t>(lane.info) & ~uintptr_t{15};
  void** frame = reinterpret_cast<void**>(top) - (kSavedRegisters + 2);
  std::memset(frame, 0, (kSavedRegisters + 2) * sizeof(void*));
  frame[kSavedRegisters] = reinterpret_cast<void*>(entry);
  lane.stack_pointer = frame;
}

}  // namespace host
