#include "alike.h"

#include <algorithm>

namespace host {

bool AlikeWrites::note(uintptr_t address, size_t size) {
  auto range = ranges_.upper_bound(address);
  if (range == ranges_.begin() || address + size > (--range)->first + range->second) return false;
  const auto* bytes = reinterpret_cast<const unsigned char*>(address);
  found_.push_back({address, {bytes, bytes + size}});
  return true;
}

uintptr_t AlikeWrites::differing() const {
  for (const Found& found : found_) {
    const auto* now = reinterpret_cast<const unsigned char*>(found.address);
    const auto [before, at] = std::mismatch(found.bytes.begin(), found.bytes.end(), now);
    if (before != found.bytes.end()) return reinterpret_cast<uintptr_t>(at);
  }
  return 0;
}

}  // namespace host
