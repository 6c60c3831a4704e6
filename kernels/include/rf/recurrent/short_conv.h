// A causal convolution of few taps, four channels at a time, for each kernel that does it. Written
// with fma, so that all of them round alike.
#pragma once

#include "rf/recurrent/recurrent.h"

namespace rf {

inline constexpr int kConvTaps = 4;  // at most

// The last inputs of four channels, oldest first.
using ConvHistory = Vec<float, 4>[kConvTaps - 1];

// The inputs of four channels of a sequence: those of earlier steps have negative numbers.
struct ConvInput {
  const float *x, *before;  // of the sequence's first token
  int64_t stride;
  const float* state;  // [width - 1, channels]; null = zeros
  int kept, channels;

  __device__ __forceinline__ Vec<float, 4> operator()(int token) const {
    if (token < 0) {
      const int row = kept + token;
      return state && row >= 0 ? Vec<float, 4>(load16(state + row * channels))
                               : Vec<float, 4>(0.0f);
    }
    const Vec<float, 4> values = load16(x + token * stride);
    return before ? values * load16(before + token * stride) : values;
  }
};

// The filters of four channels.
struct ConvFilter {
  Vec<float, 4> taps[kConvTaps];  // of the oldest input first
  Vec<float, 4> offset;

  // weight: f32 [channels, width], width 2 to 4; bias: f32 [channels] or null.
  static __device__ __forceinline__ ConvFilter of(const float* weight, const float* bias,
                                                  int channel, int width) {
    ConvFilter filter;
#pragma unroll
    for (int tap = 0; tap < kConvTaps; ++tap) {
      const int there = tap - (kConvTaps - width);
      for (int i = 0; i < 4; ++i) {
        const int64_t at = static_cast<int64_t>(channel + i) * width + there;
        filter.taps[tap][i] = there < 0 ? 0.0f : weight[at];
      }
    }
    filter.offset = bias ? Vec<float, 4>(load16(bias + channel)) : Vec<float, 4>(0.0f);
    return filter;
  }

  // The result of a token, which becomes the newest of the history.
  __device__ __forceinline__ Vec<float, 4> operator()(ConvHistory& history,
                                                      Vec<float, 4> current) const {
    Vec<float, 4> sum = fma(taps[kConvTaps - 1], current, offset);
#pragma unroll
    for (int i = 0; i < kConvTaps - 1; ++i) sum = fma(taps[i], history[i], sum);
    history[0] = history[1];
    history[1] = history[2];
    history[2] = current;
    return sum;
  }
};

// Writes the history of channels, of which a state has width - 1 rows: [width - 1, channels].
__device__ __forceinline__ void keep(const ConvHistory& history, float* state, int channels,
                                     int width) {
#pragma unroll
  for (int i = 0; i < kConvTaps - 1; ++i) {
    const int there = i - (kConvTaps - width);
    if (there >= 0) store16(state + there * channels, history[i]);
  }
}

}  // namespace rf
