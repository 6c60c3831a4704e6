// Bytes that several blocks of a launch write without order, as they say that they write the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace host {

class AlikeWrites {
 public:
  void start_launch() { ranges_.clear(); }
  void start_block() { found_.clear(); }

  void allow(uintptr_t address, size_t size) { ranges_[address] = size; }
  // Whether blocks may write these bytes alike. If so, notes what another one has written there.
  bool note(uintptr_t address, size_t size);
  // The first byte where the running block leaves something else than the one before; 0: none.
  uintptr_t differing() const;

 private:
  struct Found {
    uintptr_t address;
    std::vector<unsigned char> bytes;
  };

  std::map<uintptr_t, size_t> ranges_;  // by their beginning
  std::vector<Found> found_;
};

}  // namespace host
