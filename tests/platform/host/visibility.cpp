#include "visibility.h"

#include <algorithm>

namespace host {

void Visibility::start_launch() {
  arrivals_.clear();
  stored_late_.clear();
}

void Visibility::start_block(uint64_t number) {
  block_ = number;
  arrived_epoch_ = 0;
  seen_.clear();
  std::fill_n(unreleased_, kMaxWaves, false);
  std::fill_n(released_epoch_, kMaxWaves, 0);
  std::fill_n(acquired_, kMaxWaves, 0);
}

void Visibility::release(const Moment& now) {
  const int wave = wave_of(now.thread);
  unreleased_[wave] = false;
  released_epoch_[wave] = now.epoch;
}

void Visibility::acquire(const Moment& now) {
  acquired_[wave_of(now.thread)] = static_cast<int>(seen_.size());
}

// A barrier lies between the releases of other waves and an arrival that tells of them.
bool Visibility::has_released_all(const Moment& now) const {
  const int own = wave_of(now.thread);
  for (int wave = 0; wave < kMaxWaves; wave++) {
    if (unreleased_[wave]) return false;
    if (wave != own && released_epoch_[wave] == now.epoch) return false;
  }
  return released_epoch_[own] != 0;
}

void Visibility::atomic(uintptr_t address, const Moment& now) {
  std::vector<Arrival>& there = arrivals_[address];
  for (const Arrival& arrival : there) {
    if (arrival.block == block_) continue;
    seen_.try_emplace(arrival.block, Seen{arrival.epoch, static_cast<int>(seen_.size())});
  }
  if (!has_released_all(now)) return;
  arrived_epoch_ = now.epoch;
  if (there.empty() || there.back().block != block_) there.push_back({block_, now.epoch});
}

bool Visibility::shows(uint64_t block, uint32_t epoch, uint64_t mask, const Moment& now) const {
  const auto seen = seen_.find(block);
  if (seen == seen_.end() || seen->second.number >= acquired_[wave_of(now.thread)]) return false;
  const uint64_t since = (seen->second.epoch - epoch) & mask;
  if (since > mask / 2) return false;  // written after it arrived
  const auto late = stored_late_.find(block);
  return since != 0 || late == stored_late_.end() || late->second != seen->second.epoch;
}

}  // namespace host
