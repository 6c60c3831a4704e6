// Adds up rows: the hidden states of a prompt become its embedding.
#include "rf/wave.h"

namespace rf {

inline constexpr int kSumLanes = 8;  // of a row, four elements each: 128 bytes

// The sum over the lanes of a wave that hold the same columns.
template <int kDistance = kSumLanes>
__device__ __forceinline__ Vec<float, 4> sum_columns(Vec<float, 4> sum) {
  if constexpr (kDistance < kWave) {
    sum += shfl_xor<kDistance>(sum);
    sum = sum_columns<2 * kDistance>(sum);
  }
  return sum;
}

}  // namespace rf

// out[i] = the sum of x[row] for ranges[i][0] <= row < ranges[i][1], f32 rows of hidden_size
// elements (a multiple of 4). A block adds up 32 columns; its groups of eight lanes take rows in
// turn. Grid: (ceil(hidden_size / 32), ranges).
extern "C" __global__ __launch_bounds__(1024) void rf_sum_rows(const float* __restrict__ x,
                                                               const int32_t* __restrict__ ranges,
                                                               float* __restrict__ out,
                                                               int32_t hidden_size) {
  __shared__ rf::Vec<float, 4> partial[rf::kMaxWaves][rf::kSumLanes];
  const int thread = static_cast<int>(threadIdx.x);
  const int part = thread % rf::kSumLanes;
  const int column = static_cast<int>(blockIdx.x * rf::kSumLanes + part) * 4;
  const int step = static_cast<int>(blockDim.x) / rf::kSumLanes;
  const int end = ranges[2 * blockIdx.y + 1];

  rf::Vec<float, 4> sum = 0.0f;
  if (column < hidden_size) {
    // Several rows are on their way at once.
#pragma unroll 4
    for (int row = ranges[2 * blockIdx.y] + thread / rf::kSumLanes; row < end; row += step) {
      sum += rf::load16(x + static_cast<int64_t>(row) * hidden_size + column);
    }
  }
  sum = rf::sum_columns(sum);
  if (rf::lane_id() < rf::kSumLanes) partial[rf::wave_id()][part] = sum;
  __syncthreads();
  if (thread >= rf::kSumLanes || column >= hidden_size) return;
  const int waves = static_cast<int>(blockDim.x) / rf::kWave;
  for (int wave = 1; wave < waves; ++wave) sum += partial[wave][part];
  rf::store16(out + static_cast<int64_t>(blockIdx.y) * hidden_size + column, sum);
}
