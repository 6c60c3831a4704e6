// What a token of a decode passes between the first product of a layer with Mamba-2 and its norm,
// in one launch: convolution (rf/recurrent/short_conv.h) and recurrence (rf/recurrent/mamba.h),
// with the bits of rf_short_conv and rf_mamba.
//
// A block has a head. The inputs that it convolves are its own, and the B and C that the heads of a
// group have in common: all of their blocks read the state of these channels, so that the last one
// to have done so writes it. Where the last one norms the group as well, it is the last to have
// stored its results.
#include "rf/last_block.h"
#include "rf/recurrent/gated_norm.h"
#include "rf/recurrent/mamba.h"
#include "rf/recurrent/short_conv.h"

namespace rf {

inline constexpr int kStepParts = 4;  // at most: heads of 128 elements
inline constexpr int kStepStates = 128;
inline constexpr int kStepInputs = kStepParts * kMambaRows + 2 * kStepStates;  // of a block
static_assert(kStepInputs / 4 <= kMambaThreads, "the first part of a block convolves");

}  // namespace rf

// x: f32 [T, ...] with rows x_stride apart: x of all heads, then B and C of all groups, not
// convolved. filter: f32 [channels, width]. filter_bias: f32 [channels] or null. inputs: f32
// [slots, width - 1, channels], state of the convolution. arrived: zeros [sequences * groups], and
// afterwards again. What is not named here: as in mamba.hip, but head_dim is at most 128, too.
// norm_threads: of the blocks of rf_gated_norm, which then norms each group with the gate first, or
// 0: no group is normed. z, norm, normed, z_stride, eps: its arguments; norm is f32 [heads *
// head_dim]. A sequence has one token, or none.
// Grid: (heads, sequences), block 128 for each 32 elements.
extern "C" __global__ __launch_bounds__(rf::kStepParts* rf::kMambaThreads) void rf_mamba_step(
    const float* __restrict__ x, const float* __restrict__ filter,
    const float* __restrict__ filter_bias, const float* __restrict__ dt,
    const float* __restrict__ a, const float* __restrict__ d, const float* __restrict__ dt_bias,
    const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,
    const int32_t* __restrict__ context_len, const int32_t* __restrict__ reads,
    const int32_t* __restrict__ writes, float* inputs, float* __restrict__ state, uint32_t* arrived,
    float* out, int64_t x_stride, int64_t dt_stride, int32_t heads, int32_t head_dim,
    int32_t groups, int32_t state_size, int32_t width, const float* __restrict__ z,
    const float* __restrict__ norm, float* normed_f32, rf::half* normed_f16, int8_t* normed_q,
    rf::ActScale* normed_q_scale, int32_t normed_q_lo_offset, int64_t z_stride,
    int32_t norm_threads, float eps) {
  using namespace rf;
  alignas(16) __shared__ float convolved[kStepInputs];  // x, B, C
  __shared__ bool is_last;
  const int sequence = blockIdx.y;
  const auto own =
      RecurrentSequence::of({sequences, query_start, context_len, reads, writes}, sequence);
  if (own.tokens == 0) return;
  const int head = blockIdx.x;
  const int each = heads / groups;
  const int group = head / each;
  const int64_t written = own.last_slot();
  const int thread = threadIdx.x;

  MambaState rows(thread / kMambaThreads, head_dim, state_size);
  const auto state_in = [&](int64_t slot) {
    return state + (slot * heads + head) * head_dim * state_size;
  };
  rows.load(own.reads ? state_in(own.slot) : nullptr);
  // What else is read of memory, all of it before the arrival.
  MambaToken now;
  now.dt = dt[own.first * dt_stride + head];
  const MambaHead rates{a[head], d[head], dt_bias[head]};

  // The channels of a thread.
  const int inner = heads * head_dim;
  const int channels = inner + 2 * groups * state_size;
  const int input = thread * 4;
  const bool is_own = input < head_dim;
  const bool convolves = input < head_dim + 2 * state_size;
  int channel = head * head_dim + input;
  if (!is_own) channel = inner + group * state_size + input - head_dim;
  if (input >= head_dim + state_size) channel += (groups - 1) * state_size;
  const auto inputs_in = [&](int64_t slot) {
    return inputs + slot * (width - 1) * channels + channel;
  };
  ConvHistory history;
  if (convolves) {
    const auto of_channels = ConvFilter::of(filter, filter_bias, channel, width);
    const ConvInput at{x + own.first * x_stride + channel,        nullptr,   x_stride,
                       own.reads ? inputs_in(own.slot) : nullptr, width - 1, channels};
#pragma unroll
    for (int i = 0; i < kConvTaps - 1; ++i) history[i] = at(i - (kConvTaps - 1));
    Vec<float, 4> sum = of_channels(history, at(0));
    for (int i = 0; i < 4; ++i) sum[i] = silu(sum[i]);
    store16(convolved + input, sum);
    if (is_own && written >= 0) keep(history, inputs_in(written), channels, width);
    device_release();
  }
  __syncthreads();
  uint32_t* counter = arrived + sequence * groups + group;
  if (thread == 0 && written >= 0 && norm_threads == 0) {
    is_last = atomic_add(counter, 1u) == static_cast<uint32_t>(each - 1);
  }

#pragma unroll
  for (int i = 0; i < kMambaFours; ++i) {
    now.b[i] = rows.of_group(convolved + head_dim, i);
    now.c[i] = rows.of_group(convolved + head_dim + state_size, i);
  }
#pragma unroll
  for (int i = 0; i < kMambaLaneRows; ++i) now.x[i] = rows.of_row(convolved, i);
  float results[kMambaLaneRows];
  rows.take(now, rates, results);
  float* to = out + (own.first * heads + head) * head_dim;
#pragma unroll
  for (int i = 0; i < kMambaLaneRows; ++i) {
    if (rows.has_result(i)) to[rows.row_of(i)] = results[i];
  }
  if (written >= 0) rows.store(state_in(written));
  if (norm_threads == 0) {
    if (written < 0) return;
    lds_barrier();
    if (!is_last) return;
    device_acquire();
    if (convolves && !is_own) keep(history, inputs_in(written), channels, width);
    if (thread == 0) *counter = 0;
    return;
  }
  if (!is_last_block(counter, static_cast<uint32_t>(each))) return;
  if (written >= 0 && convolves && !is_own) keep(history, inputs_in(written), channels, width);
  const int dim = each * head_dim;
  const int64_t first = (own.first * groups + group) * dim;
  const GatedGroup of_heads{
      {out + first, z + own.first * z_stride + group * dim, norm + group * dim, true},
      dim,
      norm_threads};
  of_heads.norm({normed_f32, normed_f16, normed_q, normed_q_scale, normed_q_lo_offset}, first, eps);
}
