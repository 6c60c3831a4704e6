/* Modules, functions and kernel launches. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvidia.h"

enum { MAX_ARGUMENTS = 128 };

/* Kernels that begin with this may be launched while the one before them still runs (programmatic
   dependent launch): none of their accesses comes before the end of that. Whether a kernel does is
   told by its module, and remembered in the lowest bit of its handle. */
static const char WAIT[] = "griddepcontrol.wait";
static CUmodule* waiting;
static size_t waiting_count;

static hipError_t note_waiting(CUmodule module) {
  CUmodule* more = realloc(waiting, (waiting_count + 1) * sizeof *waiting);
  if (!more) return hipErrorOutOfMemory;
  waiting = more;
  waiting[waiting_count++] = module;
  return hipSuccess;
}

static int is_waiting(CUmodule module) {
  for (size_t i = 0; i < waiting_count; i++) {
    if (waiting[i] == module) return 1;
  }
  return 0;
}

static void forget_waiting(CUmodule module) {
  for (size_t i = 0; i < waiting_count; i++) {
    if (waiting[i] == module) waiting[i] = waiting[--waiting_count];
  }
}

static CUfunction marked(CUfunction function) { return (CUfunction)((uintptr_t)function | 1); }
static CUfunction unmarked(CUfunction function) {
  return (CUfunction)((uintptr_t)function & ~(uintptr_t)1);
}
static unsigned is_marked(CUfunction function) { return (uintptr_t)function & 1; }

HIP_API hipError_t hipModuleLoadData(CUmodule* module, const void* image) {
  REQUIRE(module && image);
  const hipError_t entered = enter_device();
  if (entered) return entered;
  char log[4096] = "";
  int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, (void*)(uintptr_t)sizeof log};
  const CUresult result = cuda.ModuleLoadDataEx(module, image, 2, options, values);
  if (result && *log) fprintf(stderr, "HIP on NVIDIA: %s\n", log);
  if (result) return hip_error(result);
  return strstr(image, WAIT) ? note_waiting(*module) : hipSuccess;
}

HIP_API hipError_t hipModuleUnload(CUmodule module) {
  forget_waiting(module);
  FORWARD(ModuleUnload(module));
}

HIP_API hipError_t hipModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  REQUIRE(function);
  const hipError_t entered = enter_device();
  if (entered) return entered;
  const hipError_t error = hip_error(cuda.ModuleGetFunction(function, module, name));
  if (!error && is_waiting(module)) *function = marked(*function);
  return error;
}

/* What CUDA gives a kernel that has not asked for more. HIP's kernels need not ask. */
enum { UNASKED_SHARED_BYTES = 48 << 10 };

static hipError_t allow_shared(CUfunction function, size_t bytes) {
  if (bytes <= UNASKED_SHARED_BYTES) return hipSuccess;
  return hip_error(
      cuda.FuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)bytes));
}

HIP_API hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                                      CUfunction function,
                                                                      int threads, size_t lds) {
  REQUIRE(function);
  const hipError_t entered = enter_device();
  if (entered) return entered;
  function = unmarked(function);
  const hipError_t allowed = allow_shared(function, lds);
  if (allowed) return allowed;
  return hip_error(cuda.OccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, lds));
}

/* Finds the arguments in the buffer of HIP's `extra` list, by the kernel's own layout; a buffer of
   another size was packed for another kernel. */
static hipError_t unpack(CUfunction function, void** extra, void** arguments) {
  char* buffer = NULL;
  size_t size = 0;
  for (; *extra != HIP_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == HIP_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = extra[1];
    } else if (*extra == HIP_LAUNCH_PARAM_BUFFER_SIZE) {
      size = *(size_t*)extra[1];
    } else {
      return hipErrorInvalidValue;
    }
  }
  if (!buffer && size) return hipErrorInvalidValue;
  size_t offset, bytes, end = 0;
  int count = 0;
  while (count < MAX_ARGUMENTS &&
         cuda.FuncGetParamInfo(function, (size_t)count, &offset, &bytes) == CUDA_SUCCESS) {
    arguments[count++] = buffer + offset;
    end = offset + bytes;
  }
  if (size < end || size > (end + 7) / 8 * 8) {
    fprintf(stderr, "HIP on NVIDIA: the argument buffer has %zu bytes, %d arguments take %zu\n",
            size, count, end);
    return hipErrorInvalidValue;
  }
  return hipSuccess;
}

HIP_API hipError_t hipModuleLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                         unsigned grid_z, unsigned block_x, unsigned block_y,
                                         unsigned block_z, unsigned shared_bytes, CUstream stream,
                                         void** parameters, void** extra) {
  REQUIRE(function);
  const hipError_t entered = enter_device();
  if (entered) return entered;
  const unsigned waits = is_marked(function);
  function = unmarked(function);
  void* arguments[MAX_ARGUMENTS];
  if (extra) {
    const hipError_t error = unpack(function, extra, arguments);
    if (error) return error;
    parameters = arguments;
  }
  const hipError_t allowed = allow_shared(function, shared_bytes);
  if (allowed) return allowed;
  CUlaunchAttribute early = {CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, "", {""}};
  early.value.programmatic_stream_serialization = 1;
  const CUlaunchConfig config = {
      {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, &early, waits};
  return hip_error(cuda.LaunchKernelEx(&config, function, parameters, NULL));
}
