#include "block.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "fault.h"
#include "memory.h"
#include "module.h"
#include "options.h"
#include "report.h"

namespace host {
namespace {

bool same_place(const Lane& a, const Lane& b) {
  return a.line == b.line && (a.file == b.file || !std::strcmp(a.file, b.file));
}

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

std::string place(const Lane& lane) {
  if (lane.wait == Wait::kDone) return name_of(lane.wait);
  return format("%s at %s:%d", name_of(lane.wait), base_name(lane.file), lane.line);
}

}  // namespace

hipError_t BlockRunner::run(const Launch& launch) {
  const FaultGuard guard;
  launch_ = &launch;
  watches_lds_ = is_watched(launch);
  threads_ = static_cast<int>(launch.block[0] * launch.block[1] * launch.block[2]);
  error_ = hipSuccess;
  // Bytes know 16 bits of the number of the launch that wrote them, and zero for none. Before the
  // numbers begin again, no byte may hold an old one.
  if (++launch_number_ % kLaunchNumbers == 0) {
    memory().forget_writers();
    launch_number_++;
  }
  memory().trim_writers();
  random_.seed(options().seed);
  visibility_.start_launch();
  alike_.start_launch();
  async_.start_launch();
  known_reads_.forget();
  for (int i = 0; i < threads_; i++) {
    make_stack(lanes_[i], i);
    RfHostLane& info = *lanes_[i].info;
    info.thread[0] = i % launch.block[0];
    info.thread[1] = i / launch.block[0] % launch.block[1];
    info.thread[2] = i / launch.block[0] / launch.block[1];
    std::copy_n(launch.block, 3, info.block_dim);
    std::copy_n(launch.grid, 3, info.grid_dim);
    info.lane = i % options().wave;
  }
  const uint64_t blocks = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  for (uint64_t i = 0; i < blocks && error_ == hipSuccess; i++) run_block(block_at(i, blocks));
  launch_ = nullptr;
  current_ = &none_;
  return error_;
}

// Whoever launches a kernel over and over in the same shape sees the same accesses to LDS, but for
// what data decide.
bool BlockRunner::is_watched(const Launch& launch) {
  constexpr int kAgain = 16;  // after so many others
  if (options().watched == 0) return true;
  const int before =
      launches_[{launch.kernel, std::to_array(launch.grid), std::to_array(launch.block)}]++;
  return before < options().watched || before % kAgain == 0;
}

uint64_t BlockRunner::block_at(uint64_t position, uint64_t count) {
  return options().order == LaneOrder::kForward ? position : count - 1 - position;
}

void BlockRunner::run_block(uint64_t number) {
  const uint32_t* grid = launch_->grid;
  block_number_ = number;
  first_epoch_ = ++epoch_;
  visibility_.start_block(number);
  alike_.start_block();
  async_.start_block();
  for (int i = 0; i < threads_; i++) {
    RfHostLane& info = *lanes_[i].info;
    info.block[0] = static_cast<uint32_t>(number % grid[0]);
    info.block[1] = static_cast<uint32_t>(number / grid[0] % grid[1]);
    info.block[2] = static_cast<uint32_t>(number / grid[0] / grid[1]);
    lanes_[i].wait = Wait::kReady;
    start_at(lanes_[i], lane_entry);
  }
  const int waves = (threads_ + options().wave - 1) / options().wave;
  do {
    order(wave_order_, waves);
    for (int i = 0; i < waves && error_ == hipSuccess; i++) run_wave(wave_order_[i]);
  } while (error_ == hipSuccess && finish_barrier());
  const uintptr_t differing = error_ == hipSuccess ? alike_.differing() : 0;
  if (!differing) return;
  const std::string place = memory().describe(reinterpret_cast<void*>(differing));
  stop_at(lanes_[0],
          format("has another value for %s than another block of the launch", place.c_str()));
}

// Runs a wave until all its lanes are at a barrier of the block or at the end.
void BlockRunner::run_wave(int wave) {
  const int first = wave * options().wave;
  const int count = std::min(options().wave, threads_ - first);
  while (run_lanes(wave, first, count) && finish_wave_operation(wave, first, count)) {
  }
}

// Runs each ready lane until it stops. False if a finding ended the launch.
bool BlockRunner::run_lanes(int wave, int first, int count) {
  order(lane_order_, count);
  wave_lanes_ = lanes_ + first;
  next_ = lane_order_.data();
  last_ = next_ + count;
  now_ = {epoch_, wave_epochs_[wave], 0};
  if (Lane* lane = next_ready()) rf_host_switch(&scheduler_, lane->stack_pointer);
  return error_ == hipSuccess;
}

// Makes the next ready lane of the wave the running one; nullptr if there is none.
Lane* BlockRunner::next_ready() {
  while (next_ != last_) {
    Lane& lane = wave_lanes_[*next_++];
    if (lane.wait != Wait::kReady) continue;
    current_ = &lane;
    now_.thread = static_cast<uint16_t>(&lane - lanes_);
    return &lane;
  }
  return nullptr;
}

// Goes on with the next lane where this one has stopped, or with the scheduler behind the last.
// Straight from lane to lane: both stop in the same place, so the processor foresees the way.
void BlockRunner::leave(Lane& lane) {
  const Lane* next = next_ready();
  rf_host_switch(&lane.stack_pointer, next ? next->stack_pointer : scheduler_);
}

void BlockRunner::lane_entry() {
  BlockRunner& runner = block_runner();
  runner.launch_->kernel->call(runner.launch_->args.data());
  Lane& lane = *runner.current_;
  lane.wait = Wait::kDone;
  runner.leave(lane);
}

// Completes the operation all lanes of a wave wait in. False if they wait in none.
bool BlockRunner::finish_wave_operation(int wave, int first, int count) {
  Lane* lanes = lanes_ + first;
  const auto in_operation = [](const Lane& lane) {
    return lane.wait != Wait::kBarrier && lane.wait != Wait::kDone;
  };
  Lane* leader = std::find_if(lanes, lanes + count, in_operation);
  if (leader == lanes + count) return false;
  for (Lane* lane = lanes; lane != lanes + count; lane++) {
    if (lane->wait == leader->wait && same_place(*lane, *leader)) continue;
    stop_at(*leader, format("has reached %s, but lane %d of the same wave is at %s",
                            place(*leader).c_str(), lane->info->lane, place(*lane).c_str()));
    return false;
  }
  if (leader->wait == Wait::kWaveSync) {
    wave_epochs_[wave]++;
  } else {
    combine(lanes, count, leader->wait);
  }
  for (Lane* lane = lanes; lane != lanes + count; lane++) lane->wait = Wait::kReady;
  return error_ == hipSuccess;
}

void BlockRunner::combine(Lane* lanes, int count, Wait operation) {
  if (operation == Wait::kCompute) {
    void* operands[64] = {};
    for (int i = 0; i < count; i++) operands[i] = lanes[i].operands;
    lanes[0].compute(operands, count);
    return;
  }
  uint64_t values[64];
  for (int i = 0; i < count; i++) values[i] = lanes[i].value;
  uint64_t ballot = 0;
  for (int i = 0; i < count; i++) ballot |= uint64_t{values[i] != 0} << i;
  for (int i = 0; i < count; i++) {
    if (operation == Wait::kShuffle) {
      const int source = lanes[i].source_lane;
      if (source < 0 || source >= count) {
        stop_at(lanes[i], format("takes the value of lane %d of a wave of %d in %s", source, count,
                                 place(lanes[i]).c_str()));
        return;
      }
      lanes[i].value = values[source];
    } else if (operation == Wait::kBallot) {
      lanes[i].value = ballot;
    } else if (values[i] != values[0]) {
      stop_at(lanes[i],
              format("brings %ld to %s where lane 0 brings %ld", static_cast<long>(values[i]),
                     place(lanes[i]).c_str(), static_cast<long>(values[0])));
      return;
    }
  }
}

// Releases the barrier all threads wait at. False if all threads are at the end.
bool BlockRunner::finish_barrier() {
  Lane* end = lanes_ + threads_;
  Lane* leader =
      std::find_if(lanes_, end, [](const Lane& lane) { return lane.wait == Wait::kBarrier; });
  if (leader == end) return false;
  for (Lane* lane = lanes_; lane != end; lane++) {
    if (lane->wait == Wait::kBarrier && same_place(*lane, *leader)) continue;
    const long waiting = std::count_if(lanes_, end, [&](const Lane& other) {
      return other.wait == Wait::kBarrier && same_place(other, *leader);
    });
    stop_at(*leader,
            format("waits in %s, reached by %ld of %d threads; thread %ld is at %s",
                   place(*leader).c_str(), waiting, threads_, lane - lanes_, place(*lane).c_str()));
    return false;
  }
  epoch_++;
  for (Lane* lane = lanes_; lane != end; lane++) lane->wait = Wait::kReady;
  return true;
}

void BlockRunner::order(std::vector<int>& indices, int count) {
  const LaneOrder kind = options().order;
  if (kind != LaneOrder::kRandom && static_cast<int>(indices.size()) == count &&
      (count < 2 || (indices[0] < indices[1]) == (kind == LaneOrder::kForward))) {
    return;
  }
  indices.resize(count);
  std::iota(indices.begin(), indices.end(), 0);
  if (kind == LaneOrder::kReverse) std::reverse(indices.begin(), indices.end());
  if (kind == LaneOrder::kRandom) std::shuffle(indices.begin(), indices.end(), random_);
}

uint64_t BlockRunner::wait(Wait reason, const char* file, int line, uint64_t value,
                           int source_lane) {
  Lane& lane = *current_;
  lane.wait = reason;
  lane.file = file;
  lane.line = line;
  lane.value = value;
  lane.source_lane = source_lane;
  leave(lane);
  return lane.value;
}

void BlockRunner::wait_for_compute(void* operands, RfHostCompute compute, const char* file,
                                   int line) {
  current_->operands = operands;
  current_->compute = compute;
  wait(Wait::kCompute, file, line);
}

void BlockRunner::say(hipError_t error, const std::string& finding) {
  const RfHostLane& info = *current_->info;
  error_ = error;
  report(error, format("kernel %s, block (%u, %u, %u), thread (%u, %u, %u) %s",
                       launch_->kernel->name, info.block[0], info.block[1], info.block[2],
                       info.thread[0], info.thread[1], info.thread[2], finding.c_str()));
}

void BlockRunner::stop(hipError_t error, const std::string& finding) {
  // Tests find the line of the source from this (tests/support/launches/source_lines.py).
  const size_t offset = launch_->module->code_offset(instruction_);
  say(error, offset ? format("%s [code+0x%zx]", finding.c_str(), offset) : finding);
  // The lanes are abandoned where they stand: kernels own nothing that would need destroying.
  rf_host_switch(&current_->stack_pointer, scheduler_);
  __builtin_unreachable();
}

void BlockRunner::stop_at(Lane& lane, const std::string& finding) {
  current_ = &lane;
  say(hipErrorLaunchFailure, finding);
}

BlockRunner block_runner_instance;

}  // namespace host

using host::block_runner;
using host::Wait;

HIP_API const RfHostLane* rf_host_lane() { return block_runner().lane().info; }

HIP_API void rf_host_barrier(const char* file, int line) {
  block_runner().wait(Wait::kBarrier, file, line);
}

HIP_API void rf_host_wave_sync(const char* file, int line) {
  block_runner().wait(Wait::kWaveSync, file, line);
}

HIP_API uint64_t rf_host_shuffle(uint64_t value, int source_lane, const char* file, int line) {
  return block_runner().wait(Wait::kShuffle, file, line, value, source_lane);
}

HIP_API uint64_t rf_host_ballot(bool predicate, const char* file, int line) {
  return block_runner().wait(Wait::kBallot, file, line, predicate);
}

HIP_API int rf_host_uniform(int value, const char* file, int line) {
  return static_cast<int>(
      block_runner().wait(Wait::kUniform, file, line, static_cast<uint32_t>(value)));
}

HIP_API void* rf_host_dynamic_lds() { return host::dynamic_lds(); }

HIP_API void rf_host_wave_compute(void* operands, RfHostCompute compute, const char* file,
                                  int line) {
  block_runner().wait_for_compute(operands, compute, file, line);
}

HIP_API void rf_host_write_alike(const void* address, int64_t bytes) {
  block_runner().alike().allow(reinterpret_cast<uintptr_t>(address), static_cast<size_t>(bytes));
}

HIP_API void rf_host_device_release() { block_runner().release(); }
HIP_API void rf_host_device_acquire() { block_runner().acquire(); }
