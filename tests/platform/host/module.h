// Kernel libraries: what hipModuleLoad loads on this platform.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hip_abi.h"
#include "lds.h"
#include "rf/platform/host_abi.h"

namespace host {

class Module {
 public:
  static constexpr size_t kLdsBytes = 64 << 10;

  // On failure returns nullptr and sets `error`.
  static std::unique_ptr<Module> load(const void* image, hipError_t& error);
  ~Module();

  // nullptr if the library has no such kernel.
  const RfHostKernel* kernel(const std::string& name) const;

  // The shared memory an address belongs to, dynamic or one of the library's, or nullptr.
  SharedMemory* shared_at(uintptr_t address) {
    if (recent_ && recent_->contains(address)) return recent_;
    return recent_ = find_shared(address);
  }
  // Whether the address is one of the library's constants.
  bool is_constant(uintptr_t address) const;

  // Where an instruction is in the library; 0 if it is not in there.
  size_t code_offset(const void* instruction) const;

  int pending = 0;  // queued launches

 private:
  struct Segment {
    uintptr_t begin;
    size_t size;
    bool writable;
  };

  Module() = default;
  void read_segments(const void* image);
  [[gnu::noinline]] SharedMemory* find_shared(uintptr_t address);

  void* library_ = nullptr;
  uintptr_t base_ = 0;
  int file_ = -1;  // stays open: its number is in the name by which the loader knows the library
  std::vector<Segment> segments_;
  std::vector<std::unique_ptr<SharedMemory>> static_lds_;
  SharedMemory* recent_ = nullptr;  // what was found last
};

// The dynamic LDS of the running launch; `resize` comes before each launch.
void resize_dynamic_lds(size_t bytes);
void* dynamic_lds();

}  // namespace host
