// Shared arrays: which exist, and who touched each of their bytes last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "global_access.h"

namespace host {

// A moment in the life of a block, as one lane sees it. Epochs count barriers and never go back,
// so what an earlier block left behind is recognised without clearing anything.
struct Moment {
  uint32_t epoch = 0;
  uint16_t wave_epoch = 0;  // counts wave_sync() within the epoch
  uint16_t thread = 0;
};

struct SharedArray {
  uintptr_t begin;
  size_t size;
  std::string name;
};

// The static shared arrays of one kernel library, and the dynamic one of a launch, with the
// history of their bytes.
class SharedMemory {
 public:
  SharedMemory(uintptr_t begin, size_t bytes);

  bool contains(uintptr_t address) const { return address - begin_ < bytes_.size(); }
  void add(SharedArray array) { arrays_.push_back(std::move(array)); }
  // Makes this the only array.
  void set(SharedArray array);
  bool has_arrays() const { return !arrays_.empty(); }

  // Checks an access and records it. Returns what is wrong with it, or an empty string.
  // `first_epoch` is that in which the block began.
  std::string access(uintptr_t address, size_t size, AccessKind kind, Moment now,
                     uint32_t first_epoch);

 private:
  struct Byte {
    Moment written, read;
  };

  std::string wrong_read(const Byte& byte, uintptr_t address, uint32_t first_epoch) const;
  std::string wrong_write(const Byte& byte, uintptr_t address, Moment now) const;
  const SharedArray* array_of(uintptr_t address) const;
  std::string out_of_bounds(uintptr_t address, size_t size, AccessKind kind) const;
  std::string at(uintptr_t address) const;

  uintptr_t begin_;
  std::vector<Byte> bytes_;
  std::vector<SharedArray> arrays_;
  mutable const SharedArray* recent_ = nullptr;
};

}  // namespace host
