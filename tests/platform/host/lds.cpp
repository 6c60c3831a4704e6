#include "lds.h"

#include <algorithm>

#include "report.h"

namespace host {
namespace {

// Stands for the history of a word whose bytes have histories of their own.
constexpr Moment kInParts = {UINT32_MAX, 0, 0};

// Whether nothing orders an earlier access before one at `now` by another thread.
bool unordered(Moment earlier, Moment now) {
  if (earlier.epoch != now.epoch || earlier.thread == now.thread) return false;
  const bool same_wave =
      wave_of(earlier.thread) >= 0 && wave_of(earlier.thread) == wave_of(now.thread);
  return !(same_wave && earlier.wave_epoch != now.wave_epoch);
}

bool wrongly_read(const Touch& touch, Moment now, uint32_t first_epoch) {
  return touch.written.epoch < first_epoch || unordered(touch.written, now);
}

bool wrongly_written(const Touch& touch, Moment now) {
  return unordered(touch.read, now) || unordered(touch.written, now);
}

// Records an access; false if it is a mistake.
bool record(Touch& touch, AccessKind kind, Moment now, uint32_t first_epoch) {
  if (kind != AccessKind::kStore) {
    if (wrongly_read(touch, now, first_epoch)) return false;
    touch.read = touch.read.epoch == now.epoch ? joined(touch.read, now) : now;
  }
  if (kind != AccessKind::kLoad) {
    if (wrongly_written(touch, now)) return false;
    touch.written = now;
  }
  return true;
}

// Atomic operations of several threads are no race; anything else together with them is one.
Moment moment_of(AccessKind kind, Moment now) {
  return kind == AccessKind::kAtomic ? Moment{now.epoch, now.wave_epoch, kSeveral} : now;
}

bool equal(Moment a, Moment b) {
  return a.epoch == b.epoch && a.wave_epoch == b.wave_epoch && a.thread == b.thread;
}

std::string name_of_thread(uint16_t thread) {
  return thread >= kSeveralOfWave ? "other threads" : format("thread %d", thread);
}

}  // namespace

SharedMemory::SharedMemory(uintptr_t begin, size_t bytes)
    : begin_(begin), size_(bytes), words_(bytes / kWord + 2) {}

void SharedMemory::set(SharedArray array) {
  recent_ = nullptr;
  arrays_.clear();
  arrays_.push_back(std::move(array));
}

bool SharedMemory::access_word(Touch& word, AccessKind kind, Moment now, uint32_t first_epoch) {
  if (!is_split(word)) return record(word, kind, now, first_epoch);
  Touch* const bytes = bytes_of(word);
  for (size_t i = 0; i < kWord; i++) {
    if (!record(bytes[i], kind, now, first_epoch)) return false;
  }
  join(word, now, first_epoch);
  return true;
}

bool SharedMemory::access_bytes(uintptr_t address, size_t size, AccessKind kind, Moment now,
                                uint32_t first_epoch) {
  now = moment_of(kind, now);
  for (const uintptr_t end = address + size; address != end;) {
    Touch& word = words_[word_of(address)];
    const size_t first = address % kWord, stop = std::min(kWord, first + (end - address));
    if (stop - first == kWord) {
      if (!access_word(word, kind, now, first_epoch)) return false;
    } else {
      if (!is_split(word)) split(word);
      Touch* const bytes = bytes_of(word);
      for (size_t i = first; i < stop; i++) {
        if (!record(bytes[i], kind, now, first_epoch)) return false;
      }
      join(word, now, first_epoch);
    }
    address += stop - first;
  }
  return true;
}

bool SharedMemory::is_split(const Touch& word) const {
  return word.written.epoch == kInParts.epoch;
}

void SharedMemory::split(Touch& word) {
  if (bytes_.empty()) bytes_.resize(words_.size() * kWord);
  std::fill_n(bytes_of(word), kWord, word);
  word = {kInParts, kInParts};
}

// Makes one history of those of a word's bytes, if nothing tells them apart any more: of what
// barriers have passed since, all that matters is whether this block wrote it.
void SharedMemory::join(Touch& word, Moment now, uint32_t first_epoch) {
  Touch* const bytes = bytes_of(word);
  const auto all = [&](auto is_like_first) {
    return std::all_of(bytes + 1, bytes + kWord, is_like_first);
  };
  const auto passed = [&](Moment moment) { return moment.epoch < now.epoch; };
  const auto old = [&](Moment moment) { return moment.epoch < first_epoch; };
  const bool written_alike = all([&](const Touch& byte) {
    if (equal(byte.written, bytes->written)) return true;
    return passed(byte.written) && passed(bytes->written) &&
           old(byte.written) == old(bytes->written);
  });
  const bool read_alike = all([&](const Touch& byte) {
    return equal(byte.read, bytes->read) || (passed(byte.read) && passed(bytes->read));
  });
  if (written_alike && read_alike) word = *bytes;
}

bool SharedMemory::is_written(uintptr_t address, size_t size, uint32_t first_epoch) const {
  for (const uintptr_t end = address + size; address != end; address++) {
    if (touch_at(address).written.epoch < first_epoch) return false;
  }
  return true;
}

void SharedMemory::forget(uintptr_t address, size_t size) {
  std::fill_n(&words_[word_of(address)], size / kWord, Touch{});
}

void SharedMemory::note_store(uintptr_t address, size_t size, uint32_t time) {
  stored_at_.resize(words_.size());
  const size_t first = word_of(address), last = word_of(address + size - 1);
  std::fill(&stored_at_[first], &stored_at_[last] + 1, time);
}

const Touch& SharedMemory::touch_at(uintptr_t address) const {
  const size_t word = word_of(address);
  return is_split(words_[word]) ? bytes_[word * kWord + address % kWord] : words_[word];
}

std::string SharedMemory::mistake(uintptr_t address, size_t size, AccessKind kind, Moment now,
                                  uint32_t first_epoch) const {
  const SharedArray* array = array_of(address);
  if (!array || address + size > array->begin + array->size) {
    return out_of_bounds(address, size, kind);
  }
  now = moment_of(kind, now);
  uintptr_t byte = address;
  const auto is_mistake = [&](const Touch& before) {
    return kind == AccessKind::kStore ? wrongly_written(before, now)
                                      : wrongly_read(before, now, first_epoch);
  };
  while (byte + 1 < address + size && !is_mistake(touch_at(byte))) byte++;
  const Touch& before = touch_at(byte);
  if (kind == AccessKind::kStore) {
    const bool was_read = unordered(before.read, now);
    return format("writes %s, which %s %s without a barrier in between", at(byte).c_str(),
                  name_of_thread((was_read ? before.read : before.written).thread).c_str(),
                  was_read ? "read" : "wrote");
  }
  if (before.written.epoch < first_epoch) {
    return format("reads %s, which nothing in this block has written", at(byte).c_str());
  }
  return format("reads %s, which %s wrote without a barrier in between", at(byte).c_str(),
                name_of_thread(before.written.thread).c_str());
}

const SharedArray* SharedMemory::array_of(uintptr_t address) const {
  if (recent_ && address - recent_->begin < recent_->size) return recent_;
  for (const SharedArray& array : arrays_) {
    if (address - array.begin < array.size) return recent_ = &array;
  }
  return nullptr;
}

std::string SharedMemory::out_of_bounds(uintptr_t address, size_t size, AccessKind kind) const {
  const char* verb = kind == AccessKind::kLoad ? "reads" : "writes";
  // The array that ends closest before the access is the one that was meant.
  const SharedArray* nearest = nullptr;
  for (const SharedArray& array : arrays_) {
    if (array.begin <= address && (!nearest || array.begin > nearest->begin)) nearest = &array;
  }
  if (!nearest) return format("%s %zu bytes of LDS in no shared array", verb, size);
  return format("%s %zu bytes at offset %zu of shared array '%s', which has %zu bytes", verb, size,
                address - nearest->begin, nearest->name.c_str(), nearest->size);
}

std::string SharedMemory::at(uintptr_t address) const {
  const SharedArray* array = array_of(address);
  return format("offset %zu of shared array '%s' (%zu bytes)", address - array->begin,
                array->name.c_str(), array->size);
}

}  // namespace host
