// One matrix multiplication by one wave: shows that the fragment layouts of mma.h are those of the
// device. Part of `rocmforge verify`.
#include "rf/mma/mma.h"

// a, b: halves [16, 32]. c: f32 [16, 16], to which a @ b.T is added. Grid 1, block: one wave.
extern "C" __global__ __launch_bounds__(64) void rf_mma_check(const rf::half* __restrict__ a,
                                                              const rf::half* __restrict__ b,
                                                              float* __restrict__ c) {
  using rf::Mma;
  constexpr int kChunks = 4;
  const auto tile = [](const rf::half* rows) {
    return [rows](int row, int chunk) {
      return reinterpret_cast<const rf::Chunk8*>(rows)[row * kChunks + chunk];
    };
  };
  Mma::Acc sums;
#pragma unroll
  for (int i = 0; i < rf::kAccValues; ++i) sums.value[i] = c[Mma::row(i) * 16 + Mma::column(i)];
#pragma unroll
  for (int chunk = 0; chunk < kChunks; chunk += Mma::kStepChunks) {
    Mma::multiply(sums, Mma::load_a(tile(a), 0, chunk), Mma::load_b(tile(b), 0, chunk));
  }
#pragma unroll
  for (int i = 0; i < rf::kAccValues; ++i) c[Mma::row(i) * 16 + Mma::column(i)] = sums.value[i];
}
