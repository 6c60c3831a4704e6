#include "async.h"

#include <cstring>

#include "global_access.h"
#include "module.h"
#include "report.h"
#include "shared_access.h"

namespace host {
namespace {

SharedMemory& lds_at(const void* address) {
  BlockRunner& runner = block_runner();
  SharedMemory* shared = runner.launch().module->shared_at(reinterpret_cast<uintptr_t>(address));
  if (!shared || !shared->has_arrays()) {
    runner.stop(hipErrorIllegalAddress, format("copies to %p, which is no LDS", address));
  }
  return *shared;
}

void check_source(const AsyncCopy& copy) {
  if (!copy.from) return;
  const auto from = reinterpret_cast<uintptr_t>(copy.from);
  if (!memory().in_arena(from)) {
    block_runner().stop(hipErrorIllegalAddress,
                        format("copies from %p, which is no memory of the device", copy.from));
  }
  check_global(from, copy.bytes, AccessKind::kLoad);
}

void finish(const AsyncCopy& copy) {
  check_source(copy);
  check_shared(lds_at(copy.to), reinterpret_cast<uintptr_t>(copy.to), copy.bytes,
               AccessKind::kStore);
  if (copy.from) {
    std::memcpy(copy.to, copy.from, copy.bytes);
  } else {
    std::memset(copy.to, 0, copy.bytes);
  }
}

AsyncWork::OfLane& own_work() { return block_runner().async().of(block_runner().now()); }

}  // namespace

void AsyncWork::start_block() {
  if (!is_used_) return;
  is_used_ = false;
  for (OfLane& lane : lanes_) {
    lane.copies.forget();
    lane.products.forget();
    lane.has_begun_products = false;
    lane.published = lane.published_epoch = lane.published_before = 0;
  }
}

void AsyncWork::publish(const Moment& now) {
  OfLane& own = of(now);
  watches_stores_ = true;
  if (own.published_epoch != now.epoch) own.published_before = own.published;
  own.published = ++time_;
  own.published_epoch = now.epoch;
}

bool AsyncWork::is_published(uint16_t thread, uint32_t stored_at, const Moment& now) const {
  if (thread >= lanes_.size()) return true;  // stored by atomic operations of several
  const OfLane& lane = lanes_[thread];
  const uint32_t last = lane.published_epoch == now.epoch ? lane.published_before : lane.published;
  return last > stored_at;
}

}  // namespace host

using namespace host;

HIP_API void rf_host_async_copy(void* lds, const void* global, int bytes, bool present) {
  BlockRunner& runner = block_runner();
  runner.at_instruction(__builtin_return_address(0));
  const auto to = reinterpret_cast<uintptr_t>(lds), from = reinterpret_cast<uintptr_t>(global);
  if ((to | from) % bytes) {
    runner.stop(hipErrorLaunchFailure, format("copies %d bytes between addresses of which one is "
                                              "no multiple of that",
                                              bytes));
  }
  const AsyncCopy copy{lds, present ? global : nullptr, bytes};
  check_source(copy);
  SharedMemory& shared = lds_at(lds);
  check_shared(shared, to, bytes, AccessKind::kStore);
  shared.forget(to, bytes);
  own_work().copies.begin(copy);
}

HIP_API void rf_host_async_commit() { own_work().copies.commit(); }

HIP_API void rf_host_async_wait(int groups) {
  block_runner().at_instruction(__builtin_return_address(0));
  AsyncCopy copy;
  while (own_work().copies.take(groups, copy)) finish(copy);
}

HIP_API void rf_host_async_wait_all() {
  block_runner().at_instruction(__builtin_return_address(0));
  own_work().copies.commit();
  AsyncCopy copy;
  while (own_work().copies.take(0, copy)) finish(copy);
}
