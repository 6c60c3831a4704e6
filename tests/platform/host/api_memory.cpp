// hipMalloc, hipFree, hipMemcpy, hipMemset and their variants.
#include <cstring>

#include "api.h"
#include "memory.h"
#include "options.h"

using namespace host;

namespace {

hipError_t allocate(void** pointer, size_t bytes, bool pinned) {
  *pointer = nullptr;
  if (bytes == 0) return hipSuccess;
  Allocation* allocation = memory().allocate(bytes, pinned);
  if (!allocation) return hipErrorOutOfMemory;
  *pointer = reinterpret_cast<void*>(allocation->begin);
  return hipSuccess;
}

// The live allocation that begins at the pointer, or a finding.
Allocation* allocation_to_free(const char* call, void* pointer, bool pinned) {
  Allocation* allocation = memory().find(pointer);
  const bool begins = allocation && allocation->begin == reinterpret_cast<uintptr_t>(pointer);
  if (begins && allocation->state == Allocation::State::kLive && allocation->pinned == pinned) {
    return allocation;
  }
  report_call(format("%s of %s", call, memory().describe(pointer).c_str()));
  return nullptr;
}

hipError_t free_now(const char* call, void* pointer, bool pinned) {
  if (!pointer) return hipSuccess;
  Allocation* allocation = allocation_to_free(call, pointer, pinned);
  if (!allocation) return hipErrorInvalidDevicePointer;
  const int pending = allocation->pending;
  if (pending) {
    // HIP waits here, and so hides that the buffer's owner did not know it was in use.
    report_call(format("%s of %s, which %d queued operations still use", call,
                       memory().describe(pointer).c_str(), pending));
  }
  streams().synchronize_all();
  memory().release(*allocation);
  return pending ? hipErrorInvalidValue : sticky_error();
}

void note(const Allocation* allocation, const void* pointer, size_t bytes, bool writes) {
  if (allocation) memory().note_use(reinterpret_cast<uintptr_t>(pointer), bytes, writes);
}

void run_copy(Allocation* to_buffer, void* to, Allocation* from_buffer, const void* from,
              size_t bytes) {
  std::memmove(to, from, bytes);
  note(from_buffer, from, bytes, false);
  note(to_buffer, to, bytes, true);
  if (!to_buffer) return;
  const auto target = reinterpret_cast<uintptr_t>(to);
  if (from_buffer) {
    memory().copy_initialised(target, reinterpret_cast<uintptr_t>(from), bytes);
  } else {
    memory().set_initialised(target, bytes);
  }
}

bool on_device(const Allocation* end) { return end && !end->pinned; }

// Whether a copy of this kind may have this end in device memory.
bool fits(const Allocation* end, bool device_expected) {
  const bool pinned = end && end->pinned;
  return on_device(end) == device_expected || (pinned && device_expected);
}

hipError_t check_end(const char* which, const void* pointer, size_t bytes, bool fits_kind) {
  const bool in_device_memory = memory().in_arena(reinterpret_cast<uintptr_t>(pointer));
  if (fits_kind && (!in_device_memory || memory().find_live(pointer, bytes))) return hipSuccess;
  report_call(
      format("copy of %zu bytes: the %s is %s", bytes, which, memory().describe(pointer).c_str()));
  return hipErrorInvalidValue;
}

hipError_t copy(void* to, const void* from, size_t bytes, int kind, Stream& stream, bool waits) {
  if (bytes == 0) return hipSuccess;
  if (kind < hipMemcpyHostToHost || kind > hipMemcpyDefault) {
    return hipErrorInvalidMemcpyDirection;
  }
  Allocation *to_buffer = memory().find(to), *from_buffer = memory().find(from);
  const bool any = kind == hipMemcpyDefault;
  const bool to_device = kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice;
  const bool from_device = kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice;
  if (hipError_t e = check_end("destination", to, bytes, any || fits(to_buffer, to_device)))
    return e;
  if (hipError_t e = check_end("source", from, bytes, any || fits(from_buffer, from_device)))
    return e;

  Operation operation{"a copy",
                      [=, &stream] {
                        run_copy(to_buffer, to, from_buffer, from, bytes);
                        if (on_device(to_buffer) && !on_device(from_buffer)) {
                          stream.upload = {to, bytes};
                        }
                        return hipSuccess;
                      },
                      {}};
  if (to_buffer) operation.buffers.push_back(to_buffer);
  if (from_buffer) operation.buffers.push_back(from_buffer);
  if (!waits && !(to_buffer && !to_buffer->pinned)) {
    // What the host reads before the copy is done is nothing it could use.
    operation.when_queued = [=] { std::memset(to, 0xFF, bytes); };
  }
  if (hipError_t e = streams().enqueue(stream, std::move(operation))) return e;
  return waits ? streams().synchronize(stream) : hipSuccess;
}

hipError_t fill(void* pointer, int value, size_t bytes, void* handle) {
  ENTER();
  STREAM(stream, handle);
  if (bytes == 0) return hipSuccess;
  Allocation* buffer = memory().find_live(pointer, bytes);
  if (!buffer) {
    report_call(format("memset of %zu bytes at %s", bytes, memory().describe(pointer).c_str()));
    return hipErrorInvalidValue;
  }
  const auto run = [=] {
    std::memset(pointer, value, bytes);
    memory().set_initialised(reinterpret_cast<uintptr_t>(pointer), bytes);
    memory().note_use(reinterpret_cast<uintptr_t>(pointer), bytes, true);
    return hipSuccess;
  };
  return streams().enqueue(*stream, {"a memset", run, {buffer}});
}

}  // namespace

HIP_API hipError_t hipMalloc(void** pointer, size_t bytes) {
  ENTER();
  NOT_WHILE_CAPTURING("hipMalloc");
  return allocate(pointer, bytes, false);
}

HIP_API hipError_t hipFree(void* pointer) {
  ENTER();
  NOT_WHILE_CAPTURING("hipFree");
  return free_now("hipFree", pointer, false);
}

HIP_API hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned) {
  ENTER();
  NOT_WHILE_CAPTURING("hipHostMalloc");
  return allocate(pointer, bytes, true);
}

HIP_API hipError_t hipHostFree(void* pointer) {
  ENTER();
  NOT_WHILE_CAPTURING("hipHostFree");
  return free_now("hipHostFree", pointer, true);
}

// Copies take any host memory here; what is checked is that registering comes in pairs.
HIP_API hipError_t hipHostRegister(void* pointer, size_t bytes, unsigned) {
  ENTER();
  NOT_WHILE_CAPTURING("hipHostRegister");
  if (!pointer || bytes == 0) return hipErrorInvalidValue;
  return memory().add_registered(pointer) ? hipSuccess : hipErrorHostMemoryAlreadyRegistered;
}

HIP_API hipError_t hipHostUnregister(void* pointer) {
  ENTER();
  NOT_WHILE_CAPTURING("hipHostUnregister");
  streams().synchronize_all();
  return memory().remove_registered(pointer) ? hipSuccess : hipErrorHostMemoryNotRegistered;
}

HIP_API hipError_t hipMallocAsync(void** pointer, size_t bytes, void* handle) {
  ENTER();
  STREAM(stream, handle);
  if (stream->capture) return hipErrorNotSupported;
  return allocate(pointer, bytes, false);
}

HIP_API hipError_t hipFreeAsync(void* pointer, void* handle) {
  ENTER();
  STREAM(stream, handle);
  if (!pointer) return hipSuccess;
  if (stream->capture) return hipErrorNotSupported;
  Allocation* allocation = allocation_to_free("hipFreeAsync", pointer, false);
  if (!allocation) return hipErrorInvalidDevicePointer;
  allocation->state = Allocation::State::kFreeQueued;
  const auto run = [allocation] {
    // As a write of everything, which must come after all other uses.
    memory().note_use(allocation->begin, allocation->size, true);
    return hipSuccess;
  };
  const hipError_t error = streams().enqueue(*stream, {"hipFreeAsync", run, {}});
  if (error) return error;
  const auto release = [allocation] {
    memory().release(*allocation);
    return hipSuccess;
  };
  return streams().enqueue(*stream, {"hipFreeAsync", release, {}});
}

HIP_API hipError_t hipMemGetInfo(size_t* free, size_t* total) {
  ENTER();
  *total = options().memory;
  *free = options().memory - memory().used();
  return hipSuccess;
}

HIP_API hipError_t hipMemcpy(void* to, const void* from, size_t bytes, int kind) {
  ENTER();
  NOT_WHILE_CAPTURING("hipMemcpy");
  return copy(to, from, bytes, kind, streams().null_stream(), true);
}

HIP_API hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind,
                                  void* handle) {
  ENTER();
  STREAM(stream, handle);
  return copy(to, from, bytes, kind, *stream, false);
}

HIP_API hipError_t hipMemset(void* pointer, int value, size_t bytes) {
  return fill(pointer, value, bytes, nullptr);
}
HIP_API hipError_t hipMemsetAsync(void* pointer, int value, size_t bytes, void* stream) {
  return fill(pointer, value, bytes, stream);
}
