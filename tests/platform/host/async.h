// What lanes have begun and not waited for: copies to LDS, and products of the matrix unit of
// Hopper GPUs. All of it happens as late as the kernel allows, so that what does not wait sees
// nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "lane.h"

namespace host {

// What a lane begins in groups and waits for in order.
template <class T>
class Groups {
 public:
  void begin(const T& thing) { things_.push_back({thing, committed_}); }
  void commit() { committed_++; }
  // Takes the next of what is not in the last `later` groups; false if there is none.
  bool take(uint64_t later, T& thing) {
    if (first_ == things_.size() || things_[first_].group + later >= committed_) return false;
    thing = things_[first_++].thing;
    if (first_ == things_.size()) forget();
    return true;
  }
  void forget() {
    things_.clear();
    first_ = 0;
  }

 private:
  struct Thing {
    T thing;
    uint64_t group;
  };
  std::vector<Thing> things_;
  size_t first_ = 0;
  uint64_t committed_ = 0;
};

struct AsyncCopy {
  void* to;
  const void* from;  // or null, for zeros
  int bytes;
};

struct AsyncProduct {
  RfHostProduct product;
  // Which of the chunks that this lane has looked at are not there, of a and of b.
  bool misses_a;
  uint32_t missing_b;
};

class AsyncWork {
 public:
  struct OfLane {
    Groups<AsyncCopy> copies;
    Groups<AsyncProduct> products;
    bool has_begun_products = false;
    // When it has published its stores last, in which epoch that was, and when in an earlier one.
    uint32_t published = 0, published_epoch = 0, published_before = 0;
  };

  AsyncWork() : lanes_(kMaxThreads) {}
  void start_launch() { watches_stores_ = false; }
  void start_block();
  OfLane& of(const Moment& now) {
    is_used_ = true;
    return lanes_[now.thread];
  }

  // The matrix unit sees what a lane has stored once the lane has published it and then passed a
  // barrier. From the first time on, stores remember when they were made.
  void publish(const Moment& now);
  bool is_published(uint16_t thread, uint32_t stored_at, const Moment& now) const;
  bool watches_stores() const { return watches_stores_; }
  uint32_t time() const { return time_; }

 private:
  static constexpr int kMaxThreads = 1024;

  std::vector<OfLane> lanes_;
  bool is_used_ = false, watches_stores_ = false;
  uint32_t time_ = 1;  // counts publications
};

}  // namespace host
