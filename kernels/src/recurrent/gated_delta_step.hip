// What a token of a decode passes between the products of a layer with Gated DeltaNet, in one
// launch: convolution (rf/recurrent/short_conv.h), delta rule (rf/recurrent/gated_delta.h) and
// gated norm (rf/recurrent/gated_norm.h), with the bits of rf_short_conv, rf_gated_delta and
// rf_gated_norm.
//
// A block has a value head. The inputs that it convolves are its own values, and queries and keys
// that the value heads of a key head have in common: all of their blocks read the state of these
// channels, so that the last one to have done so writes it.
#include "rf/last_block.h"
#include "rf/recurrent/gated_delta.h"
#include "rf/recurrent/gated_norm.h"
#include "rf/recurrent/short_conv.h"

namespace rf {

inline constexpr int kStepParts = 4;  // at most: values of 128 elements
inline constexpr int kStepKeys = 128;
inline constexpr int kStepInputs = 2 * kStepKeys + kStepParts * kDeltaColumns;  // of a block
static_assert(kStepInputs / 4 <= kDeltaThreads, "the first part of a block convolves");
static_assert(kStepParts * kDeltaColumns / 4 <= kWave, "the first wave of a block norms");

}  // namespace rf

// x: f32 [T, ...] with rows x_stride apart: queries, keys and values, not convolved. filter: f32
// [channels, width]. inputs: f32 [slots, width - 1, channels], state of the convolution. z: f32 [T,
// value_heads * value_dim], rows z_stride apart. norm: f32 [value_dim]. arrived: zeros
// [sequences * key_heads], and afterwards again. eps: of all norms. What is not named here: as in
// gated_delta.hip, but value_dim is at most 128, too (for int8 a multiple of 32).
// A sequence has one token, or none. Grid: (value_heads, sequences), block 128 for each 32 values.
extern "C" __global__ __launch_bounds__(rf::kStepParts* rf::kDeltaThreads) void rf_gated_delta_step(
    const float* __restrict__ x, const float* __restrict__ filter, const float* __restrict__ alpha,
    const float* __restrict__ beta, const float* __restrict__ decay,
    const float* __restrict__ dt_bias, const float* __restrict__ z, const float* __restrict__ norm,
    const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,
    const int32_t* __restrict__ context_len, const int32_t* __restrict__ reads,
    const int32_t* __restrict__ writes, float* inputs, float* __restrict__ state, uint32_t* arrived,
    float* __restrict__ out_f32, rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,
    rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset, int64_t x_stride,
    int64_t alpha_stride, int64_t beta_stride, int64_t z_stride, int32_t key_heads,
    int32_t value_heads, int32_t key_dim, int32_t value_dim, int32_t width, int32_t tiled_heads,
    float eps) {
  using namespace rf;
  using Four = Vec<float, 4>;
  alignas(16) __shared__ float convolved[kStepInputs];  // query, key, values
  alignas(16) __shared__ float results[kStepParts * kDeltaColumns];
  __shared__ DeltaPartial partial[kStepParts];
  __shared__ bool is_last;
  const int sequence = blockIdx.y;
  const auto own =
      RecurrentSequence::of({sequences, query_start, context_len, reads, writes}, sequence);
  if (own.tokens == 0) return;
  const int head = blockIdx.x;
  const int each = value_heads / key_heads;
  const int key_head = tiled_heads ? head % key_heads : head / each;
  const int64_t written = own.last_slot();
  const int thread = threadIdx.x;
  const int part = thread / kDeltaThreads;

  DeltaState columns(part * kDeltaColumns, key_dim, value_dim);
  const auto state_in = [&](int64_t slot) {
    return state + (slot * value_heads + head) * key_dim * value_dim;
  };
  columns.load(own.reads ? state_in(own.slot) : nullptr);
  // What else is read of memory, all of it before the arrival.
  DeltaToken now;
  now.alpha = alpha[own.first * alpha_stride + head];
  now.beta = beta[own.first * beta_stride + head];
  const DeltaHead rates{decay[head], dt_bias[head], rsqrt(static_cast<float>(key_dim)), eps};
  const bool is_normed = thread * 4 < value_dim;  // here, by the first wave
  Four gate(0.0f), weight(0.0f);
  if (is_normed) {
    gate = load16(z + own.first * z_stride + head * value_dim + thread * 4);
    weight = load16(norm + thread * 4);
  }

  // The channels of a thread.
  const int channels = 2 * key_heads * key_dim + value_heads * value_dim;
  const int input = thread * 4;
  const bool is_value = input >= 2 * key_dim;
  const bool convolves = input < 2 * key_dim + value_dim;
  int channel = key_head * key_dim + input;
  if (input >= key_dim) channel += (key_heads - 1) * key_dim;
  if (is_value) channel = 2 * key_heads * key_dim + head * value_dim + input - 2 * key_dim;
  const auto inputs_in = [&](int64_t slot) {
    return inputs + slot * (width - 1) * channels + channel;
  };
  ConvHistory history;
  if (convolves) {
    const auto of_channels = ConvFilter::of(filter, nullptr, channel, width);
    const ConvInput at{x + own.first * x_stride + channel,        nullptr,   x_stride,
                       own.reads ? inputs_in(own.slot) : nullptr, width - 1, channels};
#pragma unroll
    for (int i = 0; i < kConvTaps - 1; ++i) history[i] = at(i - (kConvTaps - 1));
    Four sum = of_channels(history, at(0));
    for (int i = 0; i < 4; ++i) sum[i] = silu(sum[i]);
    store16(convolved + input, sum);
    if (is_value && written >= 0) {
      keep(history, inputs_in(written), channels, width);
    }
    device_release();
  }
  __syncthreads();
  uint32_t* counter = arrived + sequence * key_heads + key_head;
  if (thread == 0 && written >= 0) {
    is_last = atomic_add(counter, 1u) == static_cast<uint32_t>(each - 1);
  }

#pragma unroll
  for (int i = 0; i < kKeyFours; ++i) {
    now.q[i] = columns.of_keys(convolved, i);
    now.k[i] = columns.of_keys(convolved + key_dim, i);
  }
  now.v = columns.of_values(convolved + 2 * key_dim);
  const Four own_results = columns.take(now, rates, partial[part]);
  if (columns.has_results()) store16(results + columns.column, own_results);
  if (written >= 0) {
    columns.store(state_in(written));
    if (is_last) {
      device_acquire();
      if (convolves && !is_value) {
        keep(history, inputs_in(written), channels, width);
      }
      if (thread == 0) *counter = 0;
    }
  }
  lds_barrier();

  if (wave_id() > 0) return;
  GatedFour four{};
  if (is_normed) four = GatedFour::of(load16(results + thread * 4), gate, weight, false);
  const float factor = gated_norm_factor(wave_sum(four.squares()), value_dim, eps);
  const ActOutput out{out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset};
  const int64_t element = (own.first * value_heads + head) * value_dim + thread * 4;
  out.store(element, four.normed(factor), is_normed);
}
