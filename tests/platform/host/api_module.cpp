// Modules, functions and kernel launches.
#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

#include "api.h"
#include "block.h"
#include "module.h"
#include "options.h"

using namespace host;

namespace {

struct Function {
  Module* module;
  const RfHostKernel* kernel;
};

std::map<void*, std::unique_ptr<Module>> modules;
std::map<void*, std::unique_ptr<Function>> functions;

// The argument buffer of the `extra` form. False if the list is malformed.
bool read_extra(void** extra, const unsigned char*& buffer, size_t& size) {
  for (; *extra != HIP_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == HIP_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = static_cast<const unsigned char*>(extra[1]);
    } else if (*extra == HIP_LAUNCH_PARAM_BUFFER_SIZE) {
      size = *static_cast<const size_t*>(extra[1]);
    } else {
      return false;
    }
  }
  return true;
}

size_t args_bytes(const RfHostKernel& kernel) {
  const int last = kernel.arg_count - 1;
  return last < 0 ? 0 : size_t{kernel.arg_offsets[last]} + kernel.arg_sizes[last];
}

// Copies the arguments, as HIP does during the call. Returns an error after a finding.
hipError_t read_args(const RfHostKernel& kernel, void** params, void** extra,
                     std::vector<unsigned char>& args) {
  const unsigned char* buffer = nullptr;
  size_t size = 0;
  if (extra && !read_extra(extra, buffer, size)) return hipErrorInvalidValue;
  const size_t expected = args_bytes(kernel);
  args.resize(expected);
  if (buffer) {
    if (size < expected || size > (expected + 7) / 8 * 8) {
      report_call(format("kernel %s: the argument buffer has %zu bytes, %d arguments take %zu",
                         kernel.name, size, kernel.arg_count, expected));
      return hipErrorInvalidValue;
    }
    if (expected) std::memcpy(args.data(), buffer, expected);
  } else if (params) {
    for (int i = 0; i < kernel.arg_count; i++) {
      std::memcpy(args.data() + kernel.arg_offsets[i], params[i], kernel.arg_sizes[i]);
    }
  } else if (kernel.arg_count) {
    report_call(format("kernel %s: no arguments, it takes %d", kernel.name, kernel.arg_count));
    return hipErrorInvalidValue;
  }
  return hipSuccess;
}

// The buffers that pointer arguments point into. Returns an error after a finding.
hipError_t find_buffers(const Launch& launch, std::vector<Allocation*>& buffers) {
  const RfHostKernel& kernel = *launch.kernel;
  for (int i = 0; i < kernel.arg_count; i++) {
    if (!kernel.arg_is_pointer[i]) continue;
    void* pointer;
    std::memcpy(&pointer, launch.args.data() + kernel.arg_offsets[i], sizeof pointer);
    if (!pointer) continue;
    Allocation* buffer = memory().find_live(pointer, 0);
    if (!buffer) {
      report(hipErrorIllegalAddress, format("kernel %s: argument %d points to %s", kernel.name, i,
                                            memory().describe(pointer).c_str()));
      return hipErrorIllegalAddress;
    }
    buffers.push_back(buffer);
  }
  return hipSuccess;
}

// Where a kernel brings something from the host: the memory of the device that it is given right
// behind pinned memory.
Range brought_to(const std::vector<Allocation*>& buffers) {
  for (size_t i = 1; i < buffers.size(); i++) {
    if (buffers[i - 1]->pinned && !buffers[i]->pinned) {
      return {reinterpret_cast<void*>(buffers[i]->begin), buffers[i]->size};
    }
  }
  return {};
}

hipError_t check_shape(const Launch& launch) {
  const uint64_t threads = uint64_t{launch.block[0]} * launch.block[1] * launch.block[2];
  const uint64_t blocks = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  if (!threads || !blocks || threads > BlockRunner::kMaxThreads || launch.grid[1] > 65535 ||
      launch.grid[2] > 65535 || uint64_t{launch.grid[0]} * launch.block[0] >> 32) {
    report_call(format("kernel %s: no device runs a grid of (%u, %u, %u) blocks of (%u, %u, %u)",
                       launch.kernel->name, launch.grid[0], launch.grid[1], launch.grid[2],
                       launch.block[0], launch.block[1], launch.block[2]));
    return hipErrorInvalidConfiguration;
  }
  if (threads > static_cast<uint64_t>(launch.kernel->max_threads)) {
    report_call(format("kernel %s: blocks of %lu threads, its launch bounds say %d",
                       launch.kernel->name, threads, launch.kernel->max_threads));
    return hipErrorLaunchFailure;
  }
  if (launch.dynamic_lds > Module::kLdsBytes) {
    report_call(format("kernel %s: %u bytes of dynamic LDS, there are %zu", launch.kernel->name,
                       launch.dynamic_lds, Module::kLdsBytes));
    return hipErrorInvalidConfiguration;
  }
  return hipSuccess;
}

}  // namespace

HIP_API hipError_t hipModuleLoadData(void** handle, const void* image) {
  ENTER();
  hipError_t error = hipErrorInvalidImage;
  std::unique_ptr<Module> module = Module::load(image, error);
  if (!module) return error;
  *handle = module.get();
  modules[*handle] = std::move(module);
  return hipSuccess;
}

HIP_API hipError_t hipModuleUnload(void* handle) {
  const std::lock_guard<std::mutex> lock(library_mutex());
  const auto entry = modules.find(handle);
  if (entry == modules.end()) return hipErrorInvalidHandle;
  if (entry->second->pending) {
    report_call(
        format("hipModuleUnload with %d launches of its kernels queued", entry->second->pending));
    streams().synchronize_all();
  }
  std::erase_if(functions, [&](const auto& f) { return f.second->module == entry->second.get(); });
  modules.erase(entry);
  return hipSuccess;
}

HIP_API hipError_t hipModuleGetFunction(void** handle, void* module, const char* name) {
  ENTER();
  const auto entry = modules.find(module);
  if (entry == modules.end()) return hipErrorInvalidHandle;
  const RfHostKernel* kernel = entry->second->kernel(name);
  if (!kernel) return hipErrorNotFound;
  auto function = std::make_unique<Function>(Function{entry->second.get(), kernel});
  *handle = function.get();
  functions[*handle] = std::move(function);
  return hipSuccess;
}

// What a GPU says of a kernel with many registers.
HIP_API hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* handle,
                                                                      int threads, size_t) {
  ENTER();
  if (!functions.count(handle)) return hipErrorInvalidHandle;
  if (threads <= 0) return hipErrorInvalidValue;
  *blocks = 3;
  return hipSuccess;
}

HIP_API hipError_t hipModuleLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y,
                                         unsigned grid_z, unsigned block_x, unsigned block_y,
                                         unsigned block_z, unsigned lds, void* stream_handle,
                                         void** params, void** extra) {
  ENTER();
  STREAM(stream, stream_handle);
  if (!functions.count(handle)) return hipErrorInvalidHandle;
  const Function& function = *static_cast<Function*>(handle);
  Launch launch{function.module,
                function.kernel,
                {grid_x, grid_y, grid_z},
                {block_x, block_y, block_z},
                lds,
                {}};
  if (hipError_t error = check_shape(launch)) return error;
  if (hipError_t error = read_args(*function.kernel, params, extra, launch.args)) return error;
  std::vector<Allocation*> buffers;
  if (hipError_t error = find_buffers(launch, buffers)) return error;
  const bool counted = !stream->capture;
  function.module->pending += counted;
  const auto run = [launch, counted, stream, brought = brought_to(buffers)] {
    resize_dynamic_lds(launch.dynamic_lds);
    launch.module->pending -= counted;
    if (counted && brought.bytes) stream->upload = brought;
    return block_runner().run(launch);
  };
  const std::string name = std::string("kernel ") + function.kernel->name;
  return streams().enqueue(*stream, {name, run, std::move(buffers)});
}

// Where argument `index` lies in the argument buffer; hipErrorInvalidValue past the last one.
HIP_API hipError_t rf_host_argument(void* handle, size_t index, size_t* offset, size_t* bytes) {
  const std::lock_guard<std::mutex> lock(library_mutex());
  if (!functions.count(handle)) return hipErrorInvalidHandle;
  const RfHostKernel& kernel = *static_cast<Function*>(handle)->kernel;
  if (index >= static_cast<size_t>(kernel.arg_count)) return hipErrorInvalidValue;
  *offset = kernel.arg_offsets[index];
  *bytes = kernel.arg_sizes[index];
  return hipSuccess;
}
