// Log-probabilities of the model's own distribution: of the chosen token and of the most probable.
#include "rf/sampling/scores.h"

namespace rf {

inline constexpr int kLogprobThreads = 1024;

// The best of the tokens first, first + stride and so on that come after `last`; kWorst if none
// does.
__device__ __forceinline__ Best next_best(const float* logits, int first, int stride, int vocab,
                                          Best last) {
  Best best = kWorst;
  for (int token = first; token < vocab; token += stride) {
    const Best other{logits[token], token};
    if (precedes(last, other)) best = better(best, other);
  }
  return best;
}

}  // namespace rf

// Rows with num_logprobs >= 0 get the logarithm of the probability of their token, and the first
// num_logprobs of top_ids and top_logprobs [L, num_top], most probable first, smaller id
// first among equals. The rest is NaN, -1 and minus infinity. Grid: (L).
extern "C" __global__ __launch_bounds__(rf::kLogprobThreads) void rf_logprobs(
    const float* __restrict__ logits, const int32_t* __restrict__ tokens,
    const int32_t* __restrict__ num_logprobs, float* __restrict__ logprobs,
    int32_t* __restrict__ top_ids, float* __restrict__ top_logprobs, int32_t vocab,
    int32_t num_top) {
  __shared__ rf::Best best_of_wave[rf::kMaxWaves];
  __shared__ float scratch[rf::kMaxWaves];
  const int row = blockIdx.x;
  const float* own = logits + static_cast<int64_t>(row) * vocab;
  const int token = tokens[row];
  const int wanted = token == rf::kNoToken ? -1 : num_logprobs[row];
  const int threads = static_cast<int>(blockDim.x);
  const int waves = threads / rf::kWave;

  rf::Best own_best = rf::kWorst;  // of the tokens threadIdx.x, threadIdx.x + threads and so on
  float log_total = 0.0f;
  float highest = 0.0f;
  if (wanted >= 0) {
    const rf::Best before_all{rf::kInfinity, -1};
    own_best = rf::next_best(own, threadIdx.x, threads, vocab, before_all);
    const rf::Best best = rf::wave_reduce(own_best, rf::better);
    if (rf::lane_id() == 0) best_of_wave[rf::wave_id()] = best;
    __syncthreads();
    highest = rf::best_of(best_of_wave, waves).score;
    float total = 0.0f;
    rf::for_each_four(own, 0, vocab, [&](int, rf::Vec<float, 4> four) {
      for (int k = 0; k < 4; ++k) total += rf::exp(four[k] - highest);
    });
    log_total = rf::log(rf::block_sum(total, scratch));
  }
  if (threadIdx.x == 0) {
    logprobs[row] = wanted >= 0 ? (own[token] - highest) - log_total : __builtin_nanf("");
  }

  const int found = rf::min(rf::min(wanted, num_top), vocab);
  const int64_t first = static_cast<int64_t>(row) * num_top;
  for (int i = 0; i < found; ++i) {
    const rf::Best best = rf::best_of(best_of_wave, waves);
    if (threadIdx.x == 0) {
      top_ids[first + i] = best.token;
      top_logprobs[first + i] = (best.score - highest) - log_total;
    }
    __syncthreads();
    // Only the thread that had the best one needs another: its wave looks through its tokens.
    const int thread = best.token % threads;
    if (thread / rf::kWave == rf::wave_id()) {
      const int lane = rf::lane_id();
      const rf::Best next = rf::wave_reduce(
          rf::next_best(own, thread + lane * threads, threads * rf::kWave, vocab, best),
          rf::better);
      if (lane == thread % rf::kWave) own_best = next;
      const rf::Best now = rf::wave_reduce(own_best, rf::better);
      if (lane == 0) best_of_wave[rf::wave_id()] = now;
    }
    __syncthreads();
  }
  for (int i = rf::max(found, 0) + threadIdx.x; i < num_top; i += static_cast<int>(blockDim.x)) {
    top_ids[first + i] = rf::kNoToken;
    top_logprobs[first + i] = -rf::kInfinity;
  }
}
