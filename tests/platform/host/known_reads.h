// What the running launch was found to read rightly: most loads read what others have read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace host {

class KnownReads {
 public:
  static constexpr size_t kGranule = 32;    // bytes of global memory that are noted at once
  static constexpr size_t kMostBytes = 16;  // of a load

  KnownReads() { forget(); }

  void forget() {
    forget_global();
    std::fill_n(arrays_, kArrays, Array{});
  }
  void forget_global() { std::fill_n(granules_, kGranules, UINTPTR_MAX); }

  // Notes that all lanes may read the granule of this address, from now on.
  void note_global(uintptr_t address) {
    granules_[address / kGranule % kGranules] = address / kGranule;
  }
  // The same of a shared array which this address is in.
  void note_shared(uintptr_t address, uintptr_t begin, size_t size) {
    arrays_[address / kStretch % kArrays] = {begin, size - std::min(size, kMostBytes - 1)};
  }

  // Whether a load is of what was noted. False also for some that are.
  [[gnu::always_inline]] bool hold(uintptr_t address, size_t size) const {
    const uintptr_t granule = address / kGranule;
    if (granules_[granule % kGranules] == granule) {
      return (address + size - 1) / kGranule == granule;
    }
    const Array& array = arrays_[address / kStretch % kArrays];
    return address - array.begin < array.starts;
  }

 private:
  static constexpr size_t kGranules = 1024, kArrays = 64;
  static constexpr size_t kStretch = 1024;  // bytes of LDS that are mostly in one array

  struct Array {
    uintptr_t begin = 0;
    size_t starts = 0;  // of loads of kMostBytes that end in it
  };

  uintptr_t granules_[kGranules];
  Array arrays_[kArrays];
};

}  // namespace host
