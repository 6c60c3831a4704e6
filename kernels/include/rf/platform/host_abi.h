// What kernels compiled for the host ask of the library that runs them, tests/platform/host, and
// what it asks of them. Included by both.
#pragma once

extern "C" {

struct RfHostLane {
  uint32_t thread[3], block[3], block_dim[3], grid_dim[3];
  int32_t lane;
};

// A lane keeps its structure for the whole block: safe to load once per function.
const RfHostLane* rf_host_lane() __attribute__((const));
void rf_host_barrier(const char* file, int line);
void rf_host_wave_sync(const char* file, int line);
uint64_t rf_host_shuffle(uint64_t value, int source_lane, const char* file, int line);
uint64_t rf_host_ballot(bool predicate, const char* file, int line);
int rf_host_uniform(int value, const char* file, int line);
void* rf_host_dynamic_lds();

// Stops all lanes of the wave, calls compute(operands, kWave) once with what each lane passed, and
// lets them go on: how a matrix instruction is written on the host.
using RfHostCompute = void (*)(void* const* operands, int lanes);
void rf_host_wave_compute(void* operands, RfHostCompute compute, const char* file, int line);

// Begins to copy `bytes` (4, 8 or 16), or as many zeros where `present` is false, to LDS. They are
// there when this lane has waited for them, and until then nothing is.
void rf_host_async_copy(void* lds, const void* global, int bytes, bool present);
void rf_host_async_commit();
void rf_host_async_wait(int groups);
void rf_host_async_wait_all();

// The matrix instructions of NVIDIA GPUs that mma.h and warpgroup.h have.
void rf_host_mma(float* c, const uint32_t* a, const uint32_t* b, const char* file, int line);
// What lies `offset` bytes behind the beginning of a tile whose rows of 64 halves are in the order
// of the swizzle of 128 bytes, with the next 64 of them `next` bytes further; or else of one with
// chunks of 16 bytes side by side, and the next eight halves of its rows `next` bytes further.
struct RfHostTile {
  const void* begin;
  int64_t offset, next;
  bool is_swizzled;
};
// sums += a b, or sums = a b, with 16 elements of K. Rows of b are columns of the product, or its
// K.
struct RfHostProduct {
  float* sums;
  const uint32_t* a;  // the registers of this lane, or null: the tile
  RfHostTile a_tile, b;
  int32_t columns;
  bool adds, is_transposed;
};
void rf_host_warpgroup_begin();
// Reads and changes what the pointers lead to when it is waited for, and reads tiles now, too.
void rf_host_warpgroup_multiply(const RfHostProduct* product, const char* file, int line);
void rf_host_warpgroup_commit();
void rf_host_warpgroup_wait(int groups, const char* file, int line);
// The matrix unit may read what this lane has written to LDS before, behind a barrier.
void rf_host_warpgroup_publish();

// Checks one atomic read and write, which is no data race with others of its kind.
void rf_host_atomic(const void* address, int bytes);
// Lets several blocks of the launch write these bytes with nothing in between, as all write the
// same: what each has left there when it ends is compared with what was there before.
void rf_host_write_alike(const void* address, int64_t bytes);
// What this wave has written before, blocks may read that see a later atomic operation of this one.
void rf_host_device_release();
// From here on this wave may read what blocks have released whose atomic operations it has seen.
void rf_host_device_acquire();

struct RfHostKernel {
  const char* name;
  int32_t max_threads;
  int32_t arg_count;
  const uint16_t* arg_offsets;
  const uint16_t* arg_sizes;
  const uint8_t* arg_is_pointer;
  void (*call)(const unsigned char* args);
};

}  // extern "C"
