// Faults of the processor while a kernel runs: a lane that overflows its stack, mostly.
#pragma once

#include <csignal>

namespace host {

// While it exists, a fault of the running lane is a finding instead of the end of the process.
class FaultGuard {
 public:
  FaultGuard();
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;

 private:
  struct sigaction previous_segv_, previous_bus_;
};

}  // namespace host
