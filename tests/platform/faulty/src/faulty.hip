// Kernels for the tests of the host platform. Most make one mistake.
#include "rf/platform.h"
#include "rf/written_alike.h"

using rf::kWave;

namespace {
__device__ __forceinline__ int index() { return blockIdx.x * blockDim.x + threadIdx.x; }

// One load and one store, at addresses that are multiples of 8.
__device__ __forceinline__ void copy_four(float* to, const float* from) {
  typedef rf::Vec<float, 4> FourFloats __attribute__((aligned(8)));
  *reinterpret_cast<FourFloats*>(to) = *reinterpret_cast<const FourFloats*>(from);
}
}  // namespace

// Writes y[first .. first + n): right if that is inside y.
extern "C" __global__ __launch_bounds__(256) void rf_fill(float* y, int first, int n) {
  if (index() < n) y[first + index()] = 1.0f;
}

// y[i] = x[first + i].
extern "C" __global__ __launch_bounds__(256) void rf_read(float* y, const float* x, int first,
                                                          int n) {
  if (index() < n) y[index()] = x[first + index()];
}

extern "C" __global__ __launch_bounds__(256) void rf_sum_row(float* y, const float* x, int n) {
  float sum = 0.0f;
  for (int i = 0; i < n; i++) sum += x[i];
  if (index() == 0) *y = sum;
}

extern "C" __global__ __launch_bounds__(256) void rf_read_four(float* y, const float* x,
                                                               int second) {
  for (int i = 0; i < 2; i++) copy_four(y + 4 * i, x);  // not at the first store to a page
  copy_four(y + 8, x + second);
}

extern "C" __global__ __launch_bounds__(256) void rf_shared_read_four(float* y, int second) {
  __shared__ float values[32];
  const float* elements = values;
  values[threadIdx.x] = 1.0f;
  __syncthreads();
  copy_four(y, elements);
  copy_four(y + 4, elements + second);
}

// One of the blocks writes what the others read.
extern "C" __global__ __launch_bounds__(256) void rf_read_while_written(int* y, int* x) {
  if (blockIdx.x == 1) {
    *x = 1;
  } else {
    y[blockIdx.x] = *x;
  }
}

// The array has room for half of the block. The pointer hides its size from the compiler.
extern "C" __global__ __launch_bounds__(256) void rf_shared_overflow(float* y, int offset) {
  __shared__ float half_of_it[32];
  float* elements = half_of_it;
  elements[threadIdx.x + offset] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = elements[threadIdx.x];
}

extern "C" __global__ __launch_bounds__(256) void rf_shared_index(float* y) {
  __shared__ float rows[4][16];
  rows[0][threadIdx.x] = 1.0f;  // the second index runs into the next row
  __syncthreads();
  y[threadIdx.x] = rows[threadIdx.x / 16][threadIdx.x % 16];
}

extern "C" __global__ __launch_bounds__(256) void rf_dynamic_overflow(float* y) {
  RF_DYNAMIC_LDS(float, tile);
  tile[threadIdx.x] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ __launch_bounds__(256) void rf_private_index(float* y, int n) {
  float values[4] = {};
  for (int i = 0; i < n; i++) values[i] = static_cast<float>(i);
  y[threadIdx.x] = values[threadIdx.x % 4];
}

extern "C" __global__ __launch_bounds__(256) void rf_reverse_without_barrier(float* y) {
  __shared__ float values[256];
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  y[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

// Right in the first round; in the second it writes what others may still read.
extern "C" __global__ __launch_bounds__(256) void rf_overwrite_without_barrier(float* y) {
  __shared__ float values[256];
  for (int round = 0; round < 2; round++) {
    values[threadIdx.x] = static_cast<float>(round);
    __syncthreads();
    y[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
  }
}

// Thread 63 writes what all threads read in the same step.
extern "C" __global__ __launch_bounds__(256) void rf_overwrite_first(float* y) {
  __shared__ float value;
  if (threadIdx.x == 0) value = 1.0f;
  __syncthreads();
  y[threadIdx.x] = value;
  if (threadIdx.x == 63) value = 2.0f;
}

extern "C" __global__ __launch_bounds__(256) void rf_divergent_barrier(float* y, int threads) {
  if (static_cast<int>(threadIdx.x) < threads) __syncthreads();
  y[threadIdx.x] = 1.0f;
}

extern "C" __global__ __launch_bounds__(256) void rf_two_barriers(float* y) {
  if (threadIdx.x < 64) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  y[threadIdx.x] = 1.0f;
}

extern "C" __global__ __launch_bounds__(256) void rf_shuffle_after_exit(float* y, int n) {
  if (static_cast<int>(threadIdx.x) >= n) return;
  y[threadIdx.x] = rf::shfl(static_cast<float>(threadIdx.x), 0);
}

extern "C" __global__ __launch_bounds__(256) void rf_shuffle_out_of_wave(float* y) {
  y[threadIdx.x] = rf::shfl(static_cast<float>(threadIdx.x), rf::lane_id() + 1);
}

extern "C" __global__ __launch_bounds__(256) void rf_not_uniform(int* y) {
  y[threadIdx.x] = rf::uniform(threadIdx.x / 2);
}

extern "C" __global__ __launch_bounds__(256) void rf_shared_uninitialised(float* y) {
  __shared__ float values[256];
  if (threadIdx.x != 7) values[threadIdx.x] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = values[threadIdx.x];
}

extern "C" __global__ __launch_bounds__(256) void rf_blocks_write_same(int* y) {
  y[threadIdx.x] = blockIdx.x;
}

// Right with 0 for `others`: what all blocks write is the same, and each reads what it has written.
// reads_early: before it has.
extern "C" __global__ __launch_bounds__(256) void rf_blocks_write_alike(int* y, int* read,
                                                                        int count, int others,
                                                                        int reads_early) {
  if (threadIdx.x == 0) rf::written_alike(y, count * sizeof(int));
  const int i = threadIdx.x;
  if (reads_early && blockIdx.x == 1) read[i] = y[i];
  y[i] = 7 * i;
  if (blockIdx.x == 1) y[i] += others;
  read[blockIdx.x * blockDim.x + i] = y[i];
}

// Global memory as a mailbox between the waves of a block, without a barrier.
extern "C" __global__ __launch_bounds__(256) void rf_waves_share_global(int* mailbox, int* y) {
  mailbox[threadIdx.x] = threadIdx.x;
  y[threadIdx.x] = mailbox[blockDim.x - 1 - threadIdx.x];
}

// Right: atomic.
extern "C" __global__ __launch_bounds__(256) void rf_count(int* total, int* in_block) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  rf::atomic_add(&count, 1);
  rf::atomic_add(total, 1);
  __syncthreads();
  if (threadIdx.x == 0) in_block[blockIdx.x] = count;
}

extern "C" __global__ __launch_bounds__(256) void rf_large_private_array(int* y, int n) {
  int values[128 << 10];
  for (int i = n - 1; i >= 0; i--) values[i] = i;
  y[threadIdx.x] = values[threadIdx.x];
}

// Right: float additions are a loop of compare and exchange on some targets.
extern "C" __global__ __launch_bounds__(256) void rf_count_float(float* total) {
  rf::atomic_add(total, 0.5f);
}

// Right without a mistake: the block that comes last adds up what all have written.
enum Mistake {
  kNone,
  kNoRelease,
  kReleaseOfOneWave,
  kReleaseBehindBarrier,
  kNoArrival,
  kStoreAfterArrival,
  kNoAcquire,
};
extern "C" __global__ __launch_bounds__(256) void rf_last_block_sums(int* partial, int* arrived,
                                                                     int* total, int mistake) {
  __shared__ bool is_last;
  int* own = partial + blockIdx.x * blockDim.x + threadIdx.x;
  if (mistake != kStoreAfterArrival) *own = 1;
  const bool releases = mistake == kReleaseOfOneWave ? rf::wave_id() == 0 : mistake != kNoRelease;
  if (releases && mistake != kReleaseBehindBarrier) rf::device_release();
  __syncthreads();
  if (releases && mistake == kReleaseBehindBarrier) rf::device_release();
  if (threadIdx.x == 0) {
    is_last =
        mistake == kNoArrival || rf::atomic_add(arrived, 1) == static_cast<int>(gridDim.x) - 1;
  }
  if (mistake == kStoreAfterArrival) *own = 1;
  __syncthreads();
  if (!is_last) return;
  if (mistake != kNoAcquire) rf::device_acquire();
  int sum = 0;
  for (unsigned i = 0; i < gridDim.x; i++) sum += partial[i * blockDim.x + threadIdx.x];
  total[threadIdx.x] = sum;
}

extern "C" __global__ __launch_bounds__(256) void rf_load_vector(float* y, const float* x) {
  rf::store16(y, rf::load16(x));
}

extern "C" __global__ __launch_bounds__(256) void rf_misaligned(float* y, const float* x) {
  rf::store16(y, rf::load16(x + 1));
}

extern "C" __global__ __launch_bounds__(256) void rf_divide(int* y, int divisor) {
  y[threadIdx.x] = static_cast<int>(threadIdx.x) / divisor;
}

// Right for `reader` 0: what all lanes of the first wave have read is written again after a
// wave_sync(). If `reader` is the second wave, nothing orders its reading before that.
extern "C" __global__ __launch_bounds__(256) void rf_wave_broadcast(int* y, int reader) {
  __shared__ int value;
  if (threadIdx.x == 0) value = 1;
  __syncthreads();
  int seen = 0;
  if (rf::wave_id() == 0 || rf::wave_id() == reader) seen = value;
  rf::wave_sync();
  if (threadIdx.x == 0) value = 2;
  rf::wave_sync();
  if (rf::wave_id() == 0) seen += value;
  y[threadIdx.x] = seen;
}

// Right: the lanes of one wave exchange values through LDS, ordered by wave_sync().
extern "C" __global__ __launch_bounds__(256) void rf_wave_exchange(int* y, int sync) {
  __shared__ int values[256];
  values[threadIdx.x] = threadIdx.x;
  if (sync) rf::wave_sync();
  const int first = threadIdx.x / kWave * kWave;
  y[threadIdx.x] = values[first + (kWave - 1 - rf::lane_id())];
}
