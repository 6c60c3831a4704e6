// What a block may see of others in the same launch: what they had released when they arrived at a
// counter, once this one has arrived there after them and acquired it.
//
// Nothing is really late here, as blocks run one after the other. A read that a GPU might answer
// with old bytes is refused instead.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "lds.h"

namespace host {

class Visibility {
 public:
  void start_launch();
  void start_block(uint64_t number);

  // A lane of the running block has stored something, or made an atomic operation, at this moment.
  void store(const Moment& now) {
    unreleased_[wave_of(now.thread)] = true;
    if (arrived_epoch_ == now.epoch) stored_late_[block_] = now.epoch;
  }
  void atomic(uintptr_t address, const Moment& now);
  // The lane's wave has passed such a fence.
  void release(const Moment& now);
  void acquire(const Moment& now);

  // Whether the wave of a lane may read what a block has written. Of `epoch`, in which that was,
  // the bits of `mask` are known.
  bool shows(uint64_t block, uint32_t epoch, uint64_t mask, const Moment& now) const;

 private:
  static constexpr int kMaxWaves = 1024 / 32;

  struct Arrival {
    uint64_t block;
    uint32_t epoch;
  };
  struct Seen {
    uint32_t epoch;  // of the arrival
    int number;      // how many had been seen before
  };

  bool has_released_all(const Moment& now) const;

  std::unordered_map<uintptr_t, std::vector<Arrival>> arrivals_;  // by counter
  // Blocks that have stored something since they arrived, in the epoch of that.
  std::unordered_map<uint64_t, uint32_t> stored_late_;

  // Of the running block.
  uint64_t block_ = 0;
  uint32_t arrived_epoch_ = 0;
  std::unordered_map<uint64_t, Seen> seen_;
  bool unreleased_[kMaxWaves] = {};          // by wave: whether it has stored since its release
  uint32_t released_epoch_[kMaxWaves] = {};  // and when that was
  int acquired_[kMaxWaves] = {};             // how many of those that are seen
};

}  // namespace host
