#include "shared_access.h"

namespace host {

void refuse_shared(const SharedMemory& shared, uintptr_t address, size_t size, AccessKind kind,
                   Moment now) {
  BlockRunner& runner = block_runner();
  const std::string mistake = shared.mistake(address, size, kind, now, runner.first_epoch());
  runner.stop(hipErrorLaunchFailure, mistake);
}

}  // namespace host
