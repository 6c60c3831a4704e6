#include "module.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "report.h"

namespace host {
namespace {

// What clang's address sanitizer tells its run time about a variable.
struct SanitizerGlobal {
  uintptr_t begin;
  size_t size;
  size_t size_with_redzone;
  const char* name;
  const char* file;
  uintptr_t has_dynamic_init;
  const void* location;
  uintptr_t odr_indicator;
};

// Variables registered by the library that is being loaded: its constructors run in dlopen.
std::vector<SharedArray> registered;

alignas(256) unsigned char dynamic_memory[Module::kLdsBytes];

SharedMemory& dynamic_shared() {
  static SharedMemory& instance =
      *new SharedMemory(reinterpret_cast<uintptr_t>(dynamic_memory), sizeof dynamic_memory);
  return instance;
}

// Length of an ELF image, whose section headers come last.
size_t image_bytes(const Elf64_Ehdr& header) {
  return header.e_shoff + size_t{header.e_shnum} * header.e_shentsize;
}

// Kernel libraries refer to functions of this one; hip-python loads it without publishing them.
void publish_own_symbols() {
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&publish_own_symbols), &self)) {
    dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
  }
}

}  // namespace

std::unique_ptr<Module> Module::load(const void* image, hipError_t& error) {
  const auto& header = *static_cast<const Elf64_Ehdr*>(image);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    error = hipErrorInvalidImage;
    return nullptr;
  }
  if (header.e_machine != EM_X86_64 || header.e_type != ET_DYN) {
    error = hipErrorNoBinaryForGpu;
    return nullptr;
  }
  publish_own_symbols();
  const int file = memfd_create("kernels", MFD_CLOEXEC);
  const size_t bytes = image_bytes(header);
  const bool written = file >= 0 && write(file, image, bytes) == static_cast<ssize_t>(bytes);
  const std::string path = format("/proc/self/fd/%d", file);
  registered.clear();
  void* library = written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!library) {
    if (file >= 0) close(file);
    report_call(format("hipModuleLoadData: %s", written ? dlerror() : "cannot store the image"));
    error = hipErrorSharedObjectInitFailed;
    return nullptr;
  }
  std::unique_ptr<Module> module(new Module);
  module->library_ = library;
  module->file_ = file;
  module->read_segments(image);
  for (SharedArray& array : registered) {
    if (SharedMemory* memory = module->shared_at(array.begin)) memory->add(std::move(array));
  }
  return module;
}

Module::~Module() {
  dlclose(library_);
  close(file_);
}

void Module::read_segments(const void* image) {
  link_map* map = nullptr;
  dlinfo(library_, RTLD_DI_LINKMAP, &map);
  base_ = map->l_addr;
  const auto* bytes = static_cast<const unsigned char*>(image);
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(bytes);
  for (int i = 0; i < header.e_phnum; i++) {
    const auto& segment =
        *reinterpret_cast<const Elf64_Phdr*>(bytes + header.e_phoff + i * header.e_phentsize);
    if (segment.p_type != PT_LOAD) continue;
    const uintptr_t begin = base_ + segment.p_vaddr;
    const bool writable = segment.p_flags & PF_W;
    segments_.push_back({begin, segment.p_memsz, writable});
    if (writable) static_lds_.push_back(std::make_unique<SharedMemory>(begin, segment.p_memsz));
  }
}

const RfHostKernel* Module::kernel(const std::string& name) const {
  return static_cast<const RfHostKernel*>(dlsym(library_, ("rf_host_kernel_" + name).c_str()));
}

size_t Module::code_offset(const void* instruction) const {
  const auto address = reinterpret_cast<uintptr_t>(instruction);
  return is_constant(address) ? address - base_ : 0;
}

void resize_dynamic_lds(size_t bytes) {
  dynamic_shared().set({reinterpret_cast<uintptr_t>(dynamic_memory), bytes, "dynamic LDS"});
}

void* dynamic_lds() { return dynamic_memory; }

SharedMemory* Module::find_shared(uintptr_t address) {
  if (dynamic_shared().contains(address)) return &dynamic_shared();
  for (const auto& memory : static_lds_) {
    if (memory->contains(address)) return memory.get();
  }
  return nullptr;
}

bool Module::is_constant(uintptr_t address) const {
  for (const Segment& segment : segments_) {
    if (!segment.writable && address - segment.begin < segment.size) return true;
  }
  return false;
}

}  // namespace host

HIP_API void __asan_register_globals(host::SanitizerGlobal* globals, uintptr_t count) {
  for (uintptr_t i = 0; i < count; i++) {
    host::registered.push_back({globals[i].begin, globals[i].size, globals[i].name});
  }
}

HIP_API void __asan_unregister_globals(host::SanitizerGlobal*, uintptr_t) {}
HIP_API void __asan_init() {}
HIP_API void __asan_version_mismatch_check_v8() {}
