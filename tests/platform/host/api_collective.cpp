// RCCL's functions, between processes: librccl.so is another name of this library.
//
// As everything else here they run late, in the order of their stream. A rank that makes another
// call than the others is a finding on all of them, and so is one that does not come.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "api.h"
#include "group.h"
#include "memory.h"
#include "options.h"

using namespace host;

HIP_API hipError_t hipGetDevice(int* device);

namespace {

// Numbers of nccl.h.
enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclInternalError = 3,
  ncclInvalidArgument = 4
};
enum { ncclSum = 0, ncclFloat32 = 7 };

constexpr size_t kIdBytes = 128;
struct UniqueId {
  char text[kIdBytes];
};

// Communicators by handle. Not under the library's lock, which a rank that waits for others holds.
class Groups {
 public:
  void add(std::shared_ptr<Group> group) {
    const std::lock_guard<std::mutex> lock(mutex_);
    groups_[group.get()] = std::move(group);
  }
  std::shared_ptr<Group> find(void* handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = groups_.find(handle);
    return entry == groups_.end() ? nullptr : entry->second;
  }
  std::shared_ptr<Group> take(void* handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto node = groups_.extract(handle);
    return node ? node.mapped() : nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<void*, std::shared_ptr<Group>> groups_;
};

Groups& groups() {
  static auto& instance = *new Groups;
  return instance;
}

int refuse(const std::string& text) {
  report_call(text);
  return ncclInvalidArgument;
}

bool is_initialised(const void* pointer, size_t bytes) {
  const uint8_t* state = memory().state(reinterpret_cast<uintptr_t>(pointer));
  for (size_t i = 0; i < bytes; i++) {
    if (!(state[i] & kInitialised)) return false;
  }
  return true;
}

int enqueue(const char* call, const Collective& what, const void* from, void* to, size_t to_count,
            void* communicator, void* handle) {
  const std::lock_guard<std::mutex> lock(library_mutex());
  if (sticky_error() != hipSuccess) return ncclUnhandledCudaError;
  const auto group = groups().find(communicator);
  if (!group) return refuse(format("%s: no such communicator", call));
  Stream* stream = streams().find(handle);
  if (!stream) return refuse(format("%s: no such stream", call));
  const size_t read = what.count * sizeof(float), written = to_count * sizeof(float);
  Allocation *source = memory().find_live(from, read), *target = memory().find_live(to, written);
  if (!source || source->pinned) {
    return refuse(format("%s of %zu bytes from %s", call, read, memory().describe(from).c_str()));
  }
  if (!target || target->pinned) {
    return refuse(format("%s of %zu bytes to %s", call, written, memory().describe(to).c_str()));
  }
  const auto run = [=] {
    std::string problem;
    if (!is_initialised(from, read)) {
      problem =
          format("%s of %s, not all of which was written", call, memory().describe(from).c_str());
      group->abort();
    } else {
      problem = group->run(what, static_cast<const float*>(from), static_cast<float*>(to));
    }
    if (!problem.empty()) {
      report(hipErrorLaunchFailure, problem);
      return hipError_t{hipErrorLaunchFailure};
    }
    memory().note_use(reinterpret_cast<uintptr_t>(from), read, false);
    memory().note_use(reinterpret_cast<uintptr_t>(to), written, true);
    memory().set_initialised(reinterpret_cast<uintptr_t>(to), written);
    return hipError_t{hipSuccess};
  };
  return streams().enqueue(*stream, {call, run, {source, target}}) ? ncclUnhandledCudaError
                                                                   : ncclSuccess;
}

}  // namespace

HIP_API int ncclGetVersion(int* version) {
  *version = 22707;
  return ncclSuccess;
}

HIP_API int ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> made = 0;
  std::memset(id, 0, sizeof *id);
  const std::string name = format("/dev/shm/rf-host-%d-%d", static_cast<int>(getpid()), ++made);
  std::memcpy(id->text, name.c_str(), name.size());
  return ncclSuccess;
}

HIP_API int ncclCommInitRank(void** communicator, int ranks, UniqueId id, int rank) {
  int device = 0;
  hipGetDevice(&device);
  auto group = std::make_shared<Group>();
  const std::string problem = group->join(id.text, ranks, rank, device);
  if (!problem.empty()) return refuse(format("ncclCommInitRank: %s", problem.c_str()));
  *communicator = group.get();
  groups().add(std::move(group));
  return ncclSuccess;
}

HIP_API int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation,
                          void* communicator, void* stream) {
  if (type != ncclFloat32 || operation != ncclSum) return ncclInvalidArgument;
  return enqueue("ncclAllReduce", {Collective::Kind::kAllReduce, count}, from, to, count,
                 communicator, stream);
}

HIP_API int ncclAllGather(const void* from, void* to, size_t count, int type, void* communicator,
                          void* stream) {
  if (type != ncclFloat32) return ncclInvalidArgument;
  return enqueue("ncclAllGather", {Collective::Kind::kAllGather, count}, from, to, count,
                 communicator, stream);
}

HIP_API int ncclCommAbort(void* communicator) {
  const auto group = groups().take(communicator);
  if (!group) return ncclInvalidArgument;
  group->abort();
  return ncclSuccess;
}

HIP_API int ncclCommDestroy(void* communicator) {
  const auto group = groups().take(communicator);
  if (!group) return refuse("ncclCommDestroy: no such communicator");
  if (group.use_count() > 1) {
    return refuse("ncclCommDestroy of a communicator that a stream or a graph still uses");
  }
  return ncclSuccess;
}
