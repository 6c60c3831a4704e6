// Runs the blocks of a launch: lanes in the chosen order, barriers, wave operations.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "alike.h"
#include "async.h"
#include "hip_abi.h"
#include "known_reads.h"
#include "lane.h"
#include "lds.h"
#include "visibility.h"

namespace host {

class Module;

// One kernel launch with its arguments.
struct Launch {
  Module* module = nullptr;
  const RfHostKernel* kernel = nullptr;
  uint32_t grid[3] = {}, block[3] = {};
  uint32_t dynamic_lds = 0;
  std::vector<unsigned char> args;
};

class BlockRunner {
  // A kernel, its grid and its block.
  using Shape = std::tuple<const RfHostKernel*, std::array<uint32_t, 3>, std::array<uint32_t, 3>>;

 public:
  static constexpr int kMaxThreads = 1024;
  static constexpr uint32_t kLaunchNumbers = 1 << 16;  // as many as bytes of memory tell apart

  // Runs all blocks, or those up to the first finding.
  hipError_t run(const Launch& launch);

  // Whether the caller is a lane of a running kernel.
  bool running() const { return launch_ != nullptr; }

  // For lanes. Stops this lane until its wave or block has come as far.
  uint64_t wait(Wait reason, const char* file, int line, uint64_t value = 0, int source_lane = 0);
  void wait_for_compute(void* operands, RfHostCompute compute, const char* file, int line);
  void release() { visibility_.release(now()); }
  void acquire() { visibility_.acquire(now()); }
  Visibility& visibility() { return visibility_; }
  AlikeWrites& alike() { return alike_; }
  AsyncWork& async() { return async_; }
  KnownReads& known_reads() { return known_reads_; }

  // For lanes. Reports a finding about the running lane and ends the launch.
  [[noreturn]] void stop(hipError_t error, const std::string& finding);

  // Notes which instruction of the kernel comes next, for `stop`.
  void at_instruction(const void* address) { instruction_ = address; }

  const Launch& launch() const { return *launch_; }
  Lane& lane() { return *current_; }
  bool on_own_stack(uintptr_t address) const {
    return address - current_->stack_begin < kStackBytes;
  }
  Moment now() const { return now_; }
  uint32_t first_epoch() const { return first_epoch_; }
  uint32_t launch_number() const { return launch_number_; }
  uint64_t block_number() const { return block_number_; }
  // Whether accesses to LDS are compared with those before. Options say of how many launches.
  bool watches_lds() const { return watches_lds_; }
  // Counts launches of each shape anew.
  void forget_launches() { launches_.clear(); }

 private:
  static void lane_entry();
  void run_block(uint64_t number);
  void run_wave(int wave);
  bool run_lanes(int wave, int first, int count);
  Lane* next_ready();
  void leave(Lane& lane);
  bool finish_wave_operation(int wave, int first, int count);
  void combine(Lane* lanes, int count, Wait operation);
  bool finish_barrier();
  void order(std::vector<int>& indices, int count);
  bool is_watched(const Launch& launch);
  uint64_t block_at(uint64_t position, uint64_t count);
  void stop_at(Lane& lane, const std::string& finding);
  void say(hipError_t error, const std::string& finding);

  Lane lanes_[kMaxThreads];
  Lane none_;
  Lane* current_ = &none_;     // the running lane, or the last one that ran
  Moment now_;                 // as it sees it
  void* scheduler_ = nullptr;  // stack pointer of the scheduler while a lane runs
  // The wave that runs: its first lane, and those whose turn has not come yet, in their order.
  Lane* wave_lanes_ = nullptr;
  const int *next_ = nullptr, *last_ = nullptr;
  const Launch* launch_ = nullptr;
  int threads_ = 0;
  bool watches_lds_ = true;
  std::map<Shape, int> launches_;  // how many there were of each shape
  hipError_t error_ = hipSuccess;
  std::mt19937 random_;
  std::vector<int> wave_order_, lane_order_;

  uint32_t epoch_ = 1, first_epoch_ = 1;
  uint16_t wave_epochs_[kMaxThreads / 32] = {};
  uint32_t launch_number_ = 0;
  uint64_t block_number_ = 0;
  Visibility visibility_;
  AlikeWrites alike_;
  AsyncWork async_;
  KnownReads known_reads_;
  const void* instruction_ = nullptr;
};

// The one instance. Plain data: every access of a kernel asks for it.
extern BlockRunner block_runner_instance;
inline BlockRunner& block_runner() { return block_runner_instance; }

}  // namespace host
