/* Modules, functions and kernel launches. */
#include <stdint.h>
#include <stdio.h>

#include "nvidia.h"

enum { MAX_ARGUMENTS = 128 };

HIP_API hipError_t hipModuleLoadData(CUmodule* module, const void* image) {
  REQUIRE(module && image);
  const hipError_t entered = enter_device();
  if (entered) return entered;
  char log[4096] = "";
  int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, (void*)(uintptr_t)sizeof log};
  const CUresult result = cuda.ModuleLoadDataEx(module, image, 2, options, values);
  if (result && *log) fprintf(stderr, "HIP on NVIDIA: %s\n", log);
  return hip_error(result);
}

HIP_API hipError_t hipModuleUnload(CUmodule module) { FORWARD(ModuleUnload(module)); }

HIP_API hipError_t hipModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  FORWARD(ModuleGetFunction(function, module, name));
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
  void* arguments[MAX_ARGUMENTS];
  if (extra) {
    const hipError_t error = unpack(function, extra, arguments);
    if (error) return error;
    parameters = arguments;
  }
  return hip_error(cuda.LaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                     shared_bytes, stream, parameters, NULL));
}
