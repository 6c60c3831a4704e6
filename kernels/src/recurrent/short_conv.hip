// Causal convolution of few taps, one filter a channel, over the tokens of each sequence. What the
// next tokens need, the last inputs, is the sequence's state.
#include "rf/activations/act_output.h"
#include "rf/recurrent/recurrent.h"
#include "rf/recurrent/short_conv.h"

namespace rf {

inline constexpr int kConvThreads = 64;
inline constexpr int kConvTokens = 8;  // of a block
static_assert(kConvTokens >= kConvTaps, "only the first tokens of a sequence look at its state");

using Four = Vec<float, 4>;  // channels

}  // namespace rf

// y = after * activation(filter * (before * x) + bias), where `before` and `after` may be null.
// x, before, after: f32 [T, channels] with rows `stride` apart, multiples of 4. weight: f32
// [channels, width], width 2 to 4, the current token's tap last. bias: f32 [channels] or null.
// state: f32 [slots, width - 1, channels], oldest first. silu: whether that is the activation.
// Grid: (channels / 256, tiles of kConvTokens of the longest sequence, sequences), block 64.
extern "C" __global__ __launch_bounds__(rf::kConvThreads) void rf_short_conv(
    const float* __restrict__ x, const float* __restrict__ before, const float* __restrict__ after,
    const float* __restrict__ weight, const float* __restrict__ bias,
    const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,
    const int32_t* __restrict__ context_len, const int32_t* __restrict__ reads,
    const int32_t* __restrict__ writes, float* __restrict__ state, float* __restrict__ out_f32,
    rf::half* __restrict__ out_f16, int8_t* __restrict__ out_q,
    rf::ActScale* __restrict__ out_q_scale, int32_t out_q_lo_offset, int64_t stride,
    int32_t channels, int32_t width, int32_t silu) {
  using rf::Four;
  const auto own =
      rf::RecurrentSequence::of({sequences, query_start, context_len, reads, writes}, blockIdx.z);
  const int begin = static_cast<int>(blockIdx.y) * rf::kConvTokens;
  if (begin >= own.tokens) return;
  const int end = rf::min(begin + rf::kConvTokens, own.tokens);
  const int channel = static_cast<int>(blockIdx.x * rf::kConvThreads + threadIdx.x) * 4;
  const bool inside = channel < channels;  // the others take part in what a wave does together
  const int column = inside ? channel : 0;
  const int kept = width - 1;
  const int64_t row = own.first * stride + column;
  const auto state_in = [&](int64_t slot) { return state + slot * kept * channels + column; };
  const rf::ConvInput input{x + row, before ? before + row : nullptr,
                            stride,  own.reads && inside ? state_in(own.slot) : nullptr,
                            kept,    channels};

  const auto filter = rf::ConvFilter::of(weight, bias, column, width);
  const rf::ActOutput out{out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset};

  rf::ConvHistory history;
#pragma unroll
  for (int i = 0; i < rf::kConvTaps - 1; ++i) {
    history[i] = input(begin - (rf::kConvTaps - 1) + i);
  }
  for (int token = begin; token < end; ++token) {
    Four sum = filter(history, input(token));
    for (int i = 0; silu && i < 4; ++i) sum[i] = rf::silu(sum[i]);
    if (after) sum *= rf::load16(after + row + token * stride);
    out.store((own.first + token) * channels + column, sum, inside);
    const int64_t slot = own.writes[token];
    if (slot < 0 || !inside || (begin > 0 && token == own.tokens - 1)) continue;
    rf::keep(history, state_in(slot), channels, width);
  }

  // The block of the first tokens alone reads a state, so it also writes the last one, which may
  // go to the same slot.
  const int64_t slot = own.last_slot();
  if (begin > 0 || end == own.tokens || slot < 0 || !inside) return;
  for (int i = 0; i < kept; ++i) {
    rf::store16(state_in(slot) + i * channels, input(own.tokens - kept + i));
  }
}
