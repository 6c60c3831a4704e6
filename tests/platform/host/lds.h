// Shared arrays: which exist, and who touched each of their bytes last.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "lane.h"
#include "options.h"

namespace host {

// Reads of one epoch by several threads: of one wave, whose number is added, or of any.
inline constexpr uint16_t kSeveralOfWave = 0x8000, kSeveral = 0xFFFF;

// The wave of a thread or of several; none has the number that stands for threads of several waves.
inline int wave_of(uint16_t thread) {
  if (thread == kSeveral) return -1;
  return thread & kSeveralOfWave ? thread & ~kSeveralOfWave : thread >> options().wave_shift;
}

// What stands for two reads of one epoch, of which the second is now.
inline Moment joined(Moment before, Moment now) {
  if (before.thread == now.thread) return now;
  const int wave = wave_of(before.thread);
  now.thread = wave >= 0 && wave == wave_of(now.thread) ? kSeveralOfWave | wave : kSeveral;
  return now;
}

struct SharedArray {
  uintptr_t begin;
  size_t size;
  std::string name;
};

// What is known of a byte, or of four that have the same history.
struct Touch {
  Moment written, read;
};

// The static shared arrays of one kernel library, and the dynamic one of a launch, with the
// history of their bytes. Nearly all accesses take whole words of four bytes, so it is kept by
// word, until one takes a part of a word.
class SharedMemory {
 public:
  SharedMemory(uintptr_t begin, size_t bytes);

  bool contains(uintptr_t address) const { return address - begin_ < size_; }
  void add(SharedArray array) { arrays_.push_back(std::move(array)); }
  // Makes this the only array.
  void set(SharedArray array);
  bool has_arrays() const { return !arrays_.empty(); }

  // Whether an access is inside an array, and nothing else.
  [[gnu::always_inline]] bool holds(uintptr_t address, size_t size) const {
    const bool inside = recent_ && address - recent_->begin < recent_->size;
    if (!inside && !array_of(address)) return false;
    return address + size <= recent_->begin + recent_->size;
  }
  // The array of the last access that was.
  const SharedArray& found_array() const { return *recent_; }
  // Checks an access and records it. False for a mistake: `mistake`, called with the same, says
  // which. `first_epoch` is that in which the block began.
  [[gnu::always_inline]] bool access(uintptr_t address, size_t size, AccessKind kind, Moment now,
                                     uint32_t first_epoch) {
    if (!holds(address, size)) return false;
    if ((address | size) % kWord || kind == AccessKind::kAtomic) {
      return access_bytes(address, size, kind, now, first_epoch);
    }
    Touch* word = &words_[word_of(address)];
    if (size == 4 * kWord && are_alike(word)) {  // as most often, where four are accessed at once
      Touch alike = *word;
      if (access_simply(alike, kind, now, first_epoch)) {
        std::fill_n(word, 4, alike);
        return true;
      }
    }
    for (Touch* const end = word + size / kWord; word != end; word++) {
      const bool simple = access_simply(*word, kind, now, first_epoch);
      if (!simple && !access_word(*word, kind, now, first_epoch)) return false;
    }
    return true;
  }
  // Whether the block has written all of it.
  bool is_written(uintptr_t address, size_t size, uint32_t first_epoch) const;
  // Makes whole words what nothing has written.
  void forget(uintptr_t address, size_t size);

  // When the words of an access were stored, and by which thread: for what is published later.
  void note_store(uintptr_t address, size_t size, uint32_t time);
  uint32_t stored_at(uintptr_t address) const {
    return stored_at_.empty() ? 0 : stored_at_[word_of(address)];
  }
  uint16_t writer(uintptr_t address) const { return touch_at(address).written.thread; }

  std::string at(uintptr_t address) const;
  std::string mistake(uintptr_t address, size_t size, AccessKind kind, Moment now,
                      uint32_t first_epoch) const;

 private:
  static constexpr size_t kWord = 4;

  // The accesses that nothing can be said against at a glance: to what was written, and for a store
  // read, behind another barrier or by the same thread. A word in parts is none of these.
  static bool access_simply(Touch& word, AccessKind kind, Moment now, uint32_t first_epoch) {
    return kind == AccessKind::kLoad ? load_simply(word, now, first_epoch)
                                     : store_simply(word, now);
  }
  static bool load_simply(Touch& word, Moment now, uint32_t first_epoch) {
    const bool behind = word.written.epoch - first_epoch < now.epoch - first_epoch;
    if (!behind && !same_lane(word.written, now)) return false;
    word.read = word.read.epoch == now.epoch ? joined(word.read, now) : now;
    return true;
  }
  static bool store_simply(Touch& word, Moment now) {
    if (word.written.epoch >= now.epoch && !same_lane(word.written, now)) return false;
    if (word.read.epoch >= now.epoch && !same_lane(word.read, now)) return false;
    word.written = now;
    return true;
  }
  // Whether four words have the same history.
  static bool are_alike(const Touch* words) {
    uint64_t parts[8], differing = 0;
    static_assert(sizeof parts == 4 * sizeof(Touch));
    std::memcpy(parts, words, sizeof parts);
    for (int i = 2; i < 8; i++) differing |= parts[i] ^ parts[i % 2];
    return differing == 0;
  }
  static bool same_lane(Moment a, Moment b) { return a.epoch == b.epoch && a.thread == b.thread; }

  size_t word_of(uintptr_t address) const { return address / kWord - begin_ / kWord; }
  const Touch& touch_at(uintptr_t address) const;
  [[gnu::noinline]] bool access_word(Touch& word, AccessKind kind, Moment now,
                                     uint32_t first_epoch);
  [[gnu::noinline]] bool access_bytes(uintptr_t address, size_t size, AccessKind kind, Moment now,
                                      uint32_t first_epoch);
  bool is_split(const Touch& word) const;
  void split(Touch& word);
  void join(Touch& word, Moment now, uint32_t first_epoch);
  Touch* bytes_of(const Touch& word) { return &bytes_[(&word - words_.data()) * kWord]; }

  [[gnu::noinline]] const SharedArray* array_of(uintptr_t address) const;
  std::string out_of_bounds(uintptr_t address, size_t size, AccessKind kind) const;

  uintptr_t begin_;
  size_t size_;
  std::vector<Touch> words_;
  std::vector<Touch> bytes_;         // of words in parts, once there are any
  std::vector<uint32_t> stored_at_;  // by word, once anything is published
  std::vector<SharedArray> arrays_;
  mutable const SharedArray* recent_ = nullptr;
};

}  // namespace host
