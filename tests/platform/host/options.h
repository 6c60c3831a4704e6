// How the library was started: environment variables, read once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace host {

enum class LaneOrder { kForward, kReverse, kRandom };

struct Options {
  int wave = 32;                          // RF_HOST_WAVE: 32 or 64
  int wave_shift = 5;                     // its logarithm
  LaneOrder order = LaneOrder::kForward;  // RF_HOST_LANE_ORDER: forward, reverse, random
  uint32_t seed = 1;                      // RF_HOST_SEED, of the random order
  size_t memory = size_t{4} << 30;        // RF_HOST_MEMORY_MB
  int devices = 1;                        // RF_HOST_DEVICES; they share the memory
  int patience = 60;                      // RF_HOST_PATIENCE: seconds ranks wait for each other
  int stale_replays = -1;                 // RF_HOST_STALE_REPLAYS: -1 none, else after how many
  const char* fault = nullptr;            // RF_HOST_FAULT: a file that says how a kernel fails
  int watched = 0;                        // RF_HOST_WATCHED: launches of a kernel and shape, 0: all
  bool report_leaks = false;              // RF_HOST_LEAKS: report at exit what was not freed
};

// The one instance, made at the first use; lane order, stale replays and what is watched change
// while tests run.
extern Options* options_instance;
[[gnu::noinline]] Options& make_options();
inline Options& options() { return options_instance ? *options_instance : make_options(); }

LaneOrder lane_order_named(const char* name);

}  // namespace host
