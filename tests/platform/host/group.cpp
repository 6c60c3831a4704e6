#include "group.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "options.h"
#include "report.h"
#include "stream.h"

namespace host {
namespace {

// A larger array goes in pieces.
constexpr uint64_t kSlotFloats = 1 << 16;

std::string name_of(const Collective& what) {
  const bool sum = what.kind == Collective::Kind::kAllReduce;
  return format("%s of %zu", sum ? "ncclAllReduce" : "ncclAllGather", size_t{what.count});
}

}  // namespace

struct Group::Shared {
  std::atomic<bool> has_one_left;
  std::atomic<uint64_t> arrived[kMaxRanks];  // barriers that a rank has come to
  int devices[kMaxRanks];
  Collective announced[kMaxRanks];
  float slots[kMaxRanks][kSlotFloats];
};

std::string Group::join(const std::string& path, int ranks, int rank, int device) {
  if (ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks) return "no such rank";
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared))) return "there is no shared memory";
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return "there is no shared memory";
  shared_ = static_cast<Shared*>(memory);
  ranks_ = ranks;
  rank_ = rank;
  shared_->devices[rank] = device;
  std::string problem = wait_for_all("joining");
  if (rank == 0) unlink(path.c_str());
  for (int other = 0; other < rank && problem.empty(); other++) {
    if (shared_->devices[other] != device) continue;
    problem = format("ranks %d and %d are both on device %d", other, rank, device);
  }
  return problem;
}

Group::~Group() {
  if (shared_) munmap(shared_, sizeof(Shared));
}

void Group::abort() {
  has_left_ = true;
  shared_->has_one_left = true;
}

float* Group::slot(int rank) const { return shared_->slots[rank]; }

std::string Group::wait_for_all(const char* what) {
  shared_->arrived[rank_] = ++barriers_;
  const double start = seconds_now();
  for (int other = 0; other < ranks_; other++) {
    for (int turn = 0; shared_->arrived[other] < barriers_; turn++) {
      if (shared_->has_one_left) return format("%s: another rank has left", what);
      if (seconds_now() - start > options().patience) {
        return format("%s: rank %d waited %d s for rank %d", what, rank_, options().patience,
                      other);
      }
      turn < 100 ? static_cast<void>(sched_yield()) : static_cast<void>(usleep(50));
    }
  }
  return "";
}

std::string Group::run(const Collective& what, const float* from, float* to) {
  const std::string problem = has_left_ ? "" : compute(what, from, to);
  return has_left_ ? "" : problem;
}

std::string Group::compute(const Collective& what, const float* from, float* to) {
  collectives_++;
  shared_->announced[rank_] = what;
  const std::string place = format("%s, call %zu", name_of(what).c_str(), size_t{collectives_});
  std::string problem = wait_for_all(place.c_str());
  for (int other = 0; other < ranks_ && problem.empty(); other++) {
    if (shared_->announced[other] == what) continue;
    problem = format("rank %d: %s, but rank %d: %s", rank_, place.c_str(), other,
                     name_of(shared_->announced[other]).c_str());
  }
  for (uint64_t at = 0; at < what.count && problem.empty(); at += kSlotFloats) {
    const uint64_t count = std::min(kSlotFloats, what.count - at);
    std::memcpy(slot(rank_), from + at, count * sizeof(float));
    problem = wait_for_all(place.c_str());
    if (!problem.empty()) break;
    for (int rank = 0; rank < ranks_; rank++) {
      if (what.kind == Collective::Kind::kAllGather) {
        std::memcpy(to + rank * what.count + at, slot(rank), count * sizeof(float));
        continue;
      }
      // In the same order on all ranks, so that the sums are equal to the last bit.
      for (uint64_t i = 0; i < count; i++) to[at + i] = (rank ? to[at + i] : 0) + slot(rank)[i];
    }
    problem = wait_for_all(place.c_str());
  }
  return problem;
}

}  // namespace host
