#include "lds.h"

#include "options.h"
#include "report.h"

namespace host {
namespace {

// Reads of one epoch by several threads: of one wave, whose number is added, or of any.
constexpr uint16_t kSeveralOfWave = 0x8000;
constexpr uint16_t kSeveral = 0xFFFF;

// The wave of a thread or of several; none has the number that stands for threads of several waves.
int wave_of(uint16_t thread) {
  if (thread == kSeveral) return -1;
  return thread & kSeveralOfWave ? thread & ~kSeveralOfWave : thread / options().wave;
}

// What stands for both.
uint16_t joined(uint16_t one, uint16_t other) {
  const int wave = wave_of(one);
  return wave >= 0 && wave == wave_of(other) ? kSeveralOfWave | wave : kSeveral;
}

// Whether nothing orders an earlier access before one at `now` by another thread.
bool unordered(Moment earlier, Moment now) {
  if (earlier.epoch != now.epoch || earlier.thread == now.thread) return false;
  const bool same_wave =
      wave_of(earlier.thread) >= 0 && wave_of(earlier.thread) == wave_of(now.thread);
  return !(same_wave && earlier.wave_epoch != now.wave_epoch);
}

std::string name_of_thread(uint16_t thread) {
  return thread >= kSeveralOfWave ? "other threads" : format("thread %d", thread);
}

}  // namespace

SharedMemory::SharedMemory(uintptr_t begin, size_t bytes) : begin_(begin), bytes_(bytes) {}

void SharedMemory::set(SharedArray array) {
  recent_ = nullptr;
  arrays_.clear();
  arrays_.push_back(std::move(array));
}

std::string SharedMemory::access(uintptr_t address, size_t size, AccessKind kind, Moment now,
                                 uint32_t first_epoch) {
  const SharedArray* array = array_of(address);
  if (!array || address + size > array->begin + array->size) {
    return out_of_bounds(address, size, kind);
  }
  // Atomic operations of several threads are no race; anything else together with them is one.
  if (kind == AccessKind::kAtomic) now.thread = kSeveral;
  for (uintptr_t at = address; at < address + size; at++) {
    Byte& byte = bytes_[at - begin_];
    if (kind != AccessKind::kStore) {
      if (byte.written.epoch < first_epoch || unordered(byte.written, now)) {
        return wrong_read(byte, at, first_epoch);
      }
      const Moment before = byte.read;
      byte.read = now;
      if (before.epoch == now.epoch && before.thread != now.thread) {
        byte.read.thread = joined(before.thread, now.thread);
      }
    }
    if (kind != AccessKind::kLoad) {
      if (unordered(byte.read, now) || unordered(byte.written, now)) {
        return wrong_write(byte, at, now);
      }
      byte.written = now;
    }
  }
  return {};
}

std::string SharedMemory::wrong_read(const Byte& byte, uintptr_t address,
                                     uint32_t first_epoch) const {
  if (byte.written.epoch < first_epoch) {
    return format("reads %s, which nothing in this block has written", at(address).c_str());
  }
  return format("reads %s, which %s wrote without a barrier in between", at(address).c_str(),
                name_of_thread(byte.written.thread).c_str());
}

std::string SharedMemory::wrong_write(const Byte& byte, uintptr_t address, Moment now) const {
  const bool was_read = unordered(byte.read, now);
  return format("writes %s, which %s %s without a barrier in between", at(address).c_str(),
                name_of_thread((was_read ? byte.read : byte.written).thread).c_str(),
                was_read ? "read" : "wrote");
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
