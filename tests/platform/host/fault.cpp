#include "fault.h"

#include <ucontext.h>

#include <cstdlib>

#include "block.h"
#include "report.h"

namespace host {
namespace {

constexpr size_t kSignalStackBytes = 64 << 10;

// A handler cannot run on the stack that has overflowed.
void make_signal_stack() {
  stack_t stack = {};
  sigaltstack(nullptr, &stack);
  if (!(stack.ss_flags & SS_DISABLE) && stack.ss_size >= kSignalStackBytes) return;
  stack = {};
  stack.ss_sp = std::malloc(kSignalStackBytes);
  stack.ss_size = kSignalStackBytes;
  sigaltstack(&stack, nullptr);
}

void on_fault(int, siginfo_t* info, void* context) {
  BlockRunner& runner = block_runner();
  const auto* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  // One past, as for the return address of a call.
  runner.at_instruction(reinterpret_cast<void*>(registers[REG_RIP] + 1));
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (address - (runner.lane().stack_begin - kStackGuardBytes) < kStackGuardBytes) {
    runner.stop(hipErrorLaunchFailure,
                format("overflows the stack of a lane, %zu bytes", kStackBytes));
  }
  runner.stop(hipErrorIllegalAddress, format("faults at %p", info->si_addr));
}

}  // namespace

FaultGuard::FaultGuard() {
  make_signal_stack();
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  // The handler leaves by switching to the scheduler, so the signal must not stay blocked.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous_segv_);
  sigaction(SIGBUS, &action, &previous_bus_);
}

FaultGuard::~FaultGuard() {
  sigaction(SIGSEGV, &previous_segv_, nullptr);
  sigaction(SIGBUS, &previous_bus_, nullptr);
}

}  // namespace host
