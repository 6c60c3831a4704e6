#include "memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "options.h"
#include "report.h"

namespace host {
namespace {

// Real allocators promise 256 bytes: do not give more by accident.
constexpr size_t kAlignment = 256;
constexpr size_t kMostWriters = size_t{256} << 20;  // bytes, between launches
constexpr uint8_t kPoison = 0xFF;                   // NaN in every float format

void* reserve(size_t bytes) {
  void* result = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (result == MAP_FAILED) {
    std::perror("host platform: reserving addresses");
    std::abort();
  }
  return result;
}

// Reserves addresses that are written one after the other, so that they may come in large pages:
// most of what a small one costs is its fault. Linux may have none.
void* reserve_large(size_t bytes) {
  void* result = reserve(bytes);
  madvise(result, bytes, MADV_HUGEPAGE);
  return result;
}

// Gives whole pages back; they read as zero from now on.
void discard(void* pages, size_t bytes) {
  if (madvise(pages, bytes, MADV_DONTNEED) != 0) {
    std::perror("host platform: giving pages back");
    std::abort();
  }
}

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

void Extent::include_granules(size_t first, size_t last) {
  cover(first / 64, last / 64);
  for (size_t granule = first; granule <= last;) {
    const size_t bit = granule % 64;
    const size_t bits = last - granule + 1 < 64 - bit ? last - granule + 1 : 64 - bit;
    words_[granule / 64 - first_word_] |= (~uint64_t{0} >> (64 - bits)) << bit;
    granule += bits;
  }
}

void Extent::cover(size_t first, size_t last) {
  if (words_.empty()) first_word_ = first;
  if (first < first_word_) {
    words_.insert(words_.begin(), first_word_ - first, 0);
    first_word_ = first;
  }
  if (last >= first_word_ + words_.size()) words_.resize(last - first_word_ + 1);
}

Memory::Memory()
    : arena_(reinterpret_cast<uintptr_t>(reserve_large(kArenaBytes))),
      next_(arena_ + kPage),
      state_(static_cast<uint8_t*>(reserve_large(kArenaBytes))),
      writers_(static_cast<uint64_t*>(reserve(kArenaBytes * sizeof(uint64_t)))),
      pages_(static_cast<Page*>(reserve(kArenaBytes / kPage * sizeof(Page)))) {}

Allocation* Memory::allocate(size_t bytes, bool pinned) {
  if (!pinned && (bytes > options().memory || used_ > options().memory - bytes)) return nullptr;
  // A page in front, and an odd multiple of the promised alignment.
  const uintptr_t begin = next_ + kPage + kAlignment;
  next_ = round_up(begin + bytes, kPage);
  if (!in_arena(next_)) return nullptr;
  auto allocation = std::make_unique<Allocation>();
  allocation->id = next_id_++;
  allocation->begin = begin;
  allocation->size = bytes;
  allocation->pinned = pinned;
  std::memset(reinterpret_cast<void*>(begin), kPoison, bytes);
  // The host fills pinned memory behind our back, so what is in it counts as initialised.
  std::memset(state(begin), kReadable | kWritable | (pinned ? kInitialised : 0), bytes);
  for (uintptr_t at = begin; at < next_; at += kPage) page(at).owner = allocation.get();
  if (!pinned) used_ += bytes;
  return (allocations_[begin] = std::move(allocation)).get();
}

void Memory::release(Allocation& allocation) {
  allocation.state = Allocation::State::kFreed;
  if (!allocation.pinned) used_ -= allocation.size;
  // No address is used again, so the pages can go; the host faults if it still reads them. The
  // page in front goes too, so that neighbours that are both free are one mapping.
  const uintptr_t first = allocation.begin - kAlignment - kPage;
  const size_t length = round_up(allocation.begin + allocation.size, kPage) - first;
  discard(reinterpret_cast<void*>(first), length);
  mprotect(reinterpret_cast<void*>(first), length, PROT_NONE);
  // What was known of each byte weighs nine times as much as the bytes. Zero, which is what
  // discarded pages hold, says that kernels may do nothing here and that nothing wrote here.
  discard(state(first), length);
  discard(writer(first), length * sizeof(*writers_));
  allocation.uses.clear();
}

void Memory::release_all() {
  for (const auto& [begin, allocation] : allocations_) {
    if (allocation->state == Allocation::State::kLive) release(*allocation);
  }
}

Allocation* Memory::find(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return nullptr;
  Allocation* allocation = std::prev(after)->second.get();
  return address <= allocation->begin + allocation->size ? allocation : nullptr;
}

Allocation* Memory::find_live(const void* pointer, size_t bytes) {
  Allocation* allocation = find(pointer);
  const bool live = allocation && allocation->state == Allocation::State::kLive;
  return live && allocation->contains(reinterpret_cast<uintptr_t>(pointer), bytes) ? allocation
                                                                                   : nullptr;
}

std::string Memory::describe(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (!in_arena(address)) return format("host memory (%p)", pointer);
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return format("%p, before any buffer", pointer);
  const Allocation& a = *std::prev(after)->second;
  const size_t offset = address - a.begin;
  std::string label;
  if (auto next = a.labels.upper_bound(offset); next != a.labels.begin()) {
    const auto& [start, name] = *std::prev(next);
    label = start == 0 ? format(" '%s'", name.c_str())
                       : format(" '%s' (which begins at %zu)", name.c_str(), start);
  }
  const char* state = a.state == Allocation::State::kLive ? "" : "freed ";
  const char* kind = a.pinned ? "pinned buffer" : "buffer";
  if (offset >= a.size) {
    return format("offset %zu of %s%s #%lu%s, which has %zu bytes", offset, state, kind, a.id,
                  label.c_str(), a.size);
  }
  return format("offset %zu of %s%s #%lu%s of %zu bytes", offset, state, kind, a.id, label.c_str(),
                a.size);
}

void Memory::set_access(uintptr_t address, size_t bytes, uint8_t access) {
  constexpr uint8_t kAccess = kReadable | kWritable;
  uint8_t* bits = state(address);
  for (size_t i = 0; i < bytes; i++) bits[i] = (bits[i] & ~kAccess) | (access & kAccess);
}

void Memory::set_initialised(uintptr_t address, size_t bytes) {
  uint8_t* bits = state(address);
  for (size_t i = 0; i < bytes; i++) bits[i] |= kInitialised;
}

void Memory::copy_initialised(uintptr_t to, uintptr_t from, size_t bytes) {
  uint8_t *target = state(to), *source = state(from);
  for (size_t i = 0; i < bytes; i++) {
    target[i] = (target[i] & ~kInitialised) | (source[i] & kInitialised);
  }
}

void Memory::forget_writers() {
  discard(writers_, (next_ - arena_) * sizeof(*writers_));
  pages_written_ = 0;
}

void Memory::trim_writers() {
  if (pages_written_ * kPage * sizeof(*writers_) > kMostWriters) forget_writers();
}

void Memory::note_touched(Allocation& allocation) { touched_.push_back(&allocation); }

std::vector<Allocation*> Memory::take_touched() { return std::exchange(touched_, {}); }

size_t Memory::live_bytes() const {
  size_t total = 0;
  for (const auto& [begin, allocation] : allocations_) {
    if (allocation->state == Allocation::State::kLive) total += allocation->size;
  }
  return total;
}

size_t Memory::live_count() const {
  size_t count = 0;
  for (const auto& [begin, allocation] : allocations_) {
    count += allocation->state == Allocation::State::kLive;
  }
  return count;
}

Memory* memory_instance = nullptr;

Memory& make_memory() { return *(memory_instance = new Memory); }

}  // namespace host
