// Copies to LDS that go on beside a kernel, and products of warpgroups, with a mistake or none.
#define RF_AS_HOPPER 1
#include "rf/mma/mma.h"
#include "rf/mma/warpgroup.h"

// The types of arguments are read from a compilation for AMD GPUs, where nothing uses them.
#pragma clang diagnostic ignored "-Wunused-parameter"

using rf::half;
using U4 = rf::Vec<uint32_t, 4>;

namespace {

enum Mistake {
  kNone,
  kNoWait,
  kNoBarrier,
  kNoCommit,
  kNoFence,
  kNoPublication,
  kLatePublication,
  kOverwritesTile,
  kOverwritesRegisters,
  kLeavesTile,
  kOddAddress,
  kNotUniform,
};

}  // namespace

// y[i] = x[first + i], and zeros from n on, by copies of 16 bytes in two groups. Block: 64.
extern "C" __global__ __launch_bounds__(64) void rf_copy_beside(float* y, const float* x, int first,
                                                                int n, int mistake) {
#if RF_WARPGROUPS
  __shared__ U4 tile[2][64];
  for (int group = 0; group < 2; ++group) {
    const int from = (group * 64 + static_cast<int>(threadIdx.x)) * 4;
    if (mistake == kOddAddress) first = 1;
    if (mistake == kNoCommit && group == 1) break;
    rf::warpgroup::async_copy<16>(&tile[group][threadIdx.x], x + first + from, from < n);
    rf::async_commit();
  }
  for (int group = 0; group < 2; ++group) {
    if (mistake != kNoWait) group == 0 ? rf::async_wait<1>() : rf::async_wait<0>();
    if (mistake != kNoBarrier) __syncthreads();
    const int other = 63 - static_cast<int>(threadIdx.x);
    rf::store16(y + (group * 64 + other) * 4,
                __builtin_bit_cast(rf::Vec16<float>, tile[group][other]));
  }
#endif
}

// y[64, 16] = a[64, 16] @ b[16, 16].T. Block: 128.
extern "C" __global__ __launch_bounds__(128) void rf_multiply_in_warpgroup(float* y, const half* a,
                                                                           const half* b,
                                                                           int mistake) {
#if RF_WARPGROUPS
  using rf::Mma;
  __shared__ U4 tile[32];
  const int thread = static_cast<int>(threadIdx.x);
  const auto* b_chunks = reinterpret_cast<const U4*>(b);
  if (thread < 32) tile[thread % 2 * 16 + thread / 2] = b_chunks[thread];
  if (mistake != kNoPublication && mistake != kLatePublication) rf::warpgroup::publish();
  if (mistake != kNoBarrier) __syncthreads();
  if (mistake == kLatePublication) rf::warpgroup::publish();

  const int first_row = rf::wave_id() * 16;
  uint32_t own[4];
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + rf::lane_id() / 4 + i % 2 * 8;
    own[i] = reinterpret_cast<const uint32_t*>(a)[row * 8 + rf::lane_id() % 4 + i / 2 * 4];
  }
  Mma::Acc sums[1] = {};
  auto operand = rf::warpgroup::plain_descriptor(tile, 256);
  if (mistake == kLeavesTile) operand = rf::warpgroup::behind(operand, 16);
  if (mistake == kNotUniform) operand = rf::warpgroup::behind(operand, rf::lane_id() == 3 ? 16 : 0);
  if (mistake != kNoFence) rf::warpgroup::begin();
  rf::warpgroup::multiply(sums, own, operand);
  if (mistake != kNoCommit) rf::warpgroup::commit();
  if (mistake == kOverwritesTile && thread == 5) tile[thread] = U4{};
  if (mistake == kOverwritesRegisters) own[2] = 0;
  if (mistake != kNoWait) rf::warpgroup::wait<0>();
  rf::warpgroup::receive(sums);
  for (int i = 0; i < 8; ++i) {
    y[(first_row + Mma::row(i)) * 16 + Mma::column(i)] = sums[0].value[i];
  }
#endif
}
