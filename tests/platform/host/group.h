// Ranks in several processes that do something together: memory they share, and its barriers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace host {

// What a rank is about to do. All must be about to do the same.
struct Collective {
  enum class Kind : uint32_t { kAllReduce, kAllGather };
  Kind kind;
  uint64_t count;  // of float32, on each rank

  bool operator==(const Collective&) const = default;
};

class Group {
 public:
  static constexpr int kMaxRanks = 8;

  // Joins the group that this file stands for, and waits for the other ranks. Says what is wrong,
  // if anything.
  std::string join(const std::string& path, int ranks, int rank, int device);
  ~Group();

  // Adds up or gathers, and says what is wrong, if anything. Does nothing after `abort`.
  std::string run(const Collective& what, const float* from, float* to);

  // Leaves: what waits here ends, and for the other ranks it is an error. From any thread.
  void abort();

 private:
  struct Shared;

  std::string compute(const Collective& what, const float* from, float* to);
  std::string wait_for_all(const char* what);
  float* slot(int rank) const;

  Shared* shared_ = nullptr;
  std::atomic<bool> has_left_ = false;
  int ranks_ = 0, rank_ = 0;
  uint64_t barriers_ = 0, collectives_ = 0;
};

}  // namespace host
