// What the splits of a context have found, and how it becomes one result (flash decoding, Dao et
// al. 2023). Whoever merges them adds in the same order, so that the result has the same bits.
#pragma once

#include "rf/activations/act_output.h"
#include "rf/attention/attention.h"
#include "rf/wave.h"

namespace rf {

// Sums that the outputs of splits are added to: split i to sum i % kMergeSums.
inline constexpr int kMergeSums = 4;

// A softmax: its largest score, in units of log2, and the sum of the weights relative to that.
struct MaxSum {
  float highest, total;
};

// Of `used` splits; the same in all lanes of the wave.
__device__ __forceinline__ MaxSum merge_softmax(const MaxSum* splits, int used) {
  MaxSum lane{kLowestScore, 0.0f};
  for (int i = lane_id(); i < used; i += kWave) {
    const MaxSum other = splits[i];
    const float raised = max(lane.highest, other.highest);
    lane.total =
        fma(exp2(lane.highest - raised), lane.total, exp2(other.highest - raised) * other.total);
    lane.highest = raised;
  }
  const float highest = wave_max(lane.highest);
  // Not a product, which might become one with the first addition, and lanes would disagree.
  return {highest, wave_sum(fma(exp2(lane.highest - highest), lane.total, 0.0f))};
}

__device__ __forceinline__ Vec<float, 4> add_merge_sums(const Vec<float, 4> (&sums)[kMergeSums]) {
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The results of the splits of one head after the other, in memory.
template <int kValueDim>
struct SplitResults {
  float* output;   // [heads, splits, kValueDim], relative to their maximum
  MaxSum* maxima;  // [heads, splits]
  int splits;

  __device__ __forceinline__ void store(int head, int split, int column, Vec<float, 4> values,
                                        MaxSum softmax) const {
    const int64_t row = static_cast<int64_t>(head) * splits + split;
    store16(output + row * kValueDim + column, values);
    if (column == 0) maxima[row] = softmax;
  }
};

// Merges the first `used` splits of `heads` of kHeads heads; every thread of the block calls it,
// after a barrier. `scratch` is LDS. The first head's result begins at `element` of `out`, its
// sink at `sinks`.
template <int kThreads, int kHeads, int kValueDim>
__device__ __forceinline__ void merge_splits(const SplitResults<kValueDim>& found, int used,
                                             int heads, const float* sinks, int64_t element,
                                             const ActOutput& out, MaxSum (&scratch)[kHeads]) {
  for (int head = uniform(wave_id()); head < heads; head += kThreads / kWave) {
    MaxSum softmax = merge_softmax(found.maxima + static_cast<int64_t>(head) * found.splits, used);
    softmax.total += sink_weight(sinks, head, softmax.highest);
    if (lane_id() == 0) scratch[head] = softmax;
  }
  __syncthreads();

  // Four elements a lane; whole waves stay together, as ActOutput wants. Loads are on their way
  // together, as everything after this waits for them; more of them where registers are many.
  constexpr int kElements = kHeads * kValueDim;
  constexpr int kRound = 4 * kThreads;
  constexpr int kUnroll = (kBeginsEarly ? 4 : 2) * kMergeSums;
  constexpr int kTogether = kBeginsEarly && kElements > kRound ? 2 : 1;
  for (int from = 0; from < kElements; from += kTogether * kRound) {
    Vec<float, 4> sums[kTogether][kMergeSums]{};
    const MaxSum* maxima[kTogether];
    const float* column[kTogether];
    MaxSum softmax[kTogether];
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      const int i = from + t * kRound + 4 * static_cast<int>(threadIdx.x);
      const int head = i < heads * kValueDim ? i / kValueDim : 0;
      softmax[t] = scratch[head];
      maxima[t] = found.maxima + static_cast<int64_t>(head) * found.splits;
      column[t] =
          found.output + static_cast<int64_t>(head) * found.splits * kValueDim + i % kValueDim;
    }
    for (int first = 0; first < used; first += kUnroll) {
      Vec<float, 4> values[kTogether][kUnroll];
      float factors[kTogether][kUnroll];
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
#pragma unroll
        for (int k = 0; k < kUnroll; ++k) {
          const int split = min(first + k, used - 1);
          values[t][k] = load16(column[t] + split * kValueDim);
          factors[t][k] = maxima[t][split].highest;
        }
      }
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
#pragma unroll
        for (int k = 0; k < kUnroll; ++k) {
          const float factor = first + k < used ? exp2(factors[t][k] - softmax[t].highest) : 0.0f;
          sums[t][k % kMergeSums] += factor * values[t][k];
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      const int i = from + t * kRound + 4 * static_cast<int>(threadIdx.x);
      out.store(element + i, add_merge_sums(sums[t]) * (1.0f / softmax[t].total),
                i < heads * kValueDim);
    }
  }
}

}  // namespace rf
