// Device and pinned memory: one reserved range of addresses with a byte of state for every byte.
//
// Kernels are compiled so that every load and store asks here first (access.cpp). That is exact
// where guard pages are not: an element past the end of a buffer, a block of the KV pool that the
// kernel has no business in, a byte that nothing was written to, and a write that another block of
// the same launch made are all seen. Addresses are never used twice, so a stale pointer is always
// recognised.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "hip_abi.h"

namespace host {

// Bits of a byte's state.
enum : uint8_t { kReadable = 1, kWritable = 2, kInitialised = 4 };

// The offsets that an operation touched, as granules of 32 bytes; empty while end is 0. Two
// operations may touch different parts of one buffer, as steps and copies do of experts' seats.
struct Extent {
  size_t begin = SIZE_MAX, end = 0;

  bool empty() const { return end == 0; }
  [[gnu::always_inline]] void include(size_t from, size_t to) {
    begin = from < begin ? from : begin;
    end = to > end ? to : end;
    const size_t first = from / kGranule, last = (to - 1) / kGranule;
    const size_t word = first / 64 - first_word_;
    if (first == last && word < words_.size()) {
      words_[word] |= uint64_t{1} << first % 64;
    } else {
      include_granules(first, last);
    }
  }
  bool overlaps(const Extent& other) const {
    if (begin >= other.end || other.begin >= end) return false;
    const size_t first = std::max(first_word_, other.first_word_);
    const size_t stop =
        std::min(first_word_ + words_.size(), other.first_word_ + other.words_.size());
    for (size_t word = first; word < stop; word++) {
      if (words_[word - first_word_] & other.words_[word - other.first_word_]) return true;
    }
    return false;
  }

 private:
  static constexpr size_t kGranule = 32;

  [[gnu::noinline]] void include_granules(size_t first, size_t last);
  // Makes room for these words.
  void cover(size_t first, size_t last);

  size_t first_word_ = 0;
  std::vector<uint64_t> words_;
};

// An operation of a stream that used part of an allocation (see order.h).
struct Use {
  Extent extent;
  bool writes;
  int stream;
  uint64_t sequence;
  uint64_t generation;  // see Streams
  std::string operation;
};

struct Allocation {
  enum class State { kLive, kFreeQueued, kFreed };

  uint64_t id;
  uintptr_t begin;
  size_t size;
  bool pinned;  // host memory made with hipHostMalloc
  State state = State::kLive;
  int pending = 0;                       // operations that were queued with it and have not run
  std::map<size_t, std::string> labels;  // by offset
  std::vector<Use> uses;                 // those that later operations may have to wait for

  // What the running operation has touched.
  Extent read, written;

  bool contains(uintptr_t address, size_t bytes) const {
    return address >= begin && address + bytes <= begin + size;
  }
};

// Of the arena. No two allocations have a part of the same.
inline constexpr size_t kPage = 4096;
struct Page {
  Allocation* owner;  // the only one there ever is
  uint32_t writer;    // the last launch that wrote to it
};

class Memory {
 public:
  Memory();

  // nullptr when the device's memory is used up.
  Allocation* allocate(size_t bytes, bool pinned);
  void release(Allocation& allocation);
  void release_all();

  // The allocation at or before this address, if the address belongs to it; freed ones included.
  Allocation* find(const void* pointer);
  // The same, if it is live and holds all these bytes.
  Allocation* find_live(const void* pointer, size_t bytes);

  // Where an address is, in words.
  std::string describe(const void* pointer);

  bool in_arena(uintptr_t address) const { return address - arena_ < kArenaBytes; }
  uint8_t* state(uintptr_t address) { return state_ + (address - arena_); }
  uint64_t* writer(uintptr_t address) { return writers_ + (address - arena_); }
  Page& page(uintptr_t address) { return pages_[(address - arena_) / kPage]; }

  // Notes which launch has written to the page of this address. Whether it is the first write.
  bool note_writer(uintptr_t address, uint32_t launch) {
    uint32_t& writer = page(address).writer;
    if (writer == launch) return false;
    writer = launch;
    pages_written_++;
    return true;
  }
  // No byte was written by any launch.
  void forget_writers();
  // The same once they take too much, between two launches: they only matter within one.
  void trim_writers();

  void set_access(uintptr_t address, size_t bytes, uint8_t access);
  void set_initialised(uintptr_t address, size_t bytes);
  void copy_initialised(uintptr_t to, uintptr_t from, size_t bytes);

  // Widens what the running operation has read or written of the allocation at this address.
  [[gnu::always_inline]] void note_use(uintptr_t address, size_t size, bool writes) {
    if (!size) return;
    Allocation& a = *page(address).owner;
    if (a.read.empty() && a.written.empty()) note_touched(a);
    const size_t offset = address - a.begin;
    (writes ? a.written : a.read).include(offset, offset + size);
  }
  // Hands over the allocations touched since the last call, with what was touched of them.
  std::vector<Allocation*> take_touched();

  // Host memory that was pinned where it lies; false if it was, or was not, already.
  bool add_registered(const void* pointer) { return registered_.insert(pointer).second; }
  bool remove_registered(const void* pointer) { return registered_.erase(pointer) == 1; }

  size_t used() const { return used_; }
  size_t live_bytes() const;
  size_t live_count() const;

 private:
  [[gnu::noinline]] void note_touched(Allocation& allocation);

  static constexpr size_t kArenaBytes = size_t{1} << 38;

  uintptr_t arena_ = 0, next_ = 0;
  uint8_t* state_ = nullptr;
  uint64_t* writers_ = nullptr;  // per byte: who wrote it last, see access.cpp
  Page* pages_ = nullptr;
  size_t pages_written_ = 0;  // by launches since writers were forgotten
  size_t used_ = 0;
  uint64_t next_id_ = 1;
  std::map<uintptr_t, std::unique_ptr<Allocation>> allocations_;
  std::set<const void*> registered_;
  std::vector<Allocation*> touched_;
};

// The one instance, made at the first use.
extern Memory* memory_instance;
[[gnu::noinline]] Memory& make_memory();
inline Memory& memory() { return memory_instance ? *memory_instance : make_memory(); }

}  // namespace host
