// From logits to a token, for each row, with the meaning of the reference backend's `sampling`.
//
//   rf_sample_adjust  penalties and logit bias, on a copy    (only if a row has any)
//   rf_sample_mask    minus infinity for tokens that are not allowed, on the copy
//   rf_sample_max     the largest score, and the tokens if no row draws
//   rf_sample_filter  top-k and top-p as one threshold       (only if a row has a filter)
//   rf_sample_draw    the largest score plus noise, tokens   (only if a row draws)
//
// Rows are cut into parts, one block each, except for the filter; the last block of a row to finish
// finds its token. Everything that is summed up over threads is an integer, so results do not
// depend on the order of threads.
#include "rf/last_block.h"
#include "rf/sampling/gumbel.h"
#include "rf/sampling/scores.h"

#pragma clang fp contract(off)

namespace rf {

// The order of the kept tokens works on l = (score - max) / temperature, which is never positive.
// As integers, the bits of -l are in the same order.
__device__ __forceinline__ float scaled(float score, float highest, float temperature) {
  return (score - highest) / temperature;
}
__device__ __forceinline__ uint32_t key_of(float l) {
  return __builtin_bit_cast(uint32_t, l) & 0x7fffffffu;
}
__device__ __forceinline__ float score_of(uint32_t key) { return -__builtin_bit_cast(float, key); }

// exp(l) in units of 2^-44: the sum over 2^18 tokens fits 63 bits.
__device__ __forceinline__ uint64_t mass_of(uint32_t key) {
  return static_cast<uint64_t>(exp(score_of(key)) * 0x1p44f);
}

inline constexpr int kBins = 2048;
inline constexpr int kListed = 2048;

// Keys are told apart digit by digit. The first digit cuts l into steps of 1/32 octave, which
// spreads the tokens that matter over many bins; the other three are the bits of the key.
inline constexpr int kDigits = 4;

__device__ __forceinline__ int digit_of(uint32_t key, int digit) {
  if (digit == 0) {
    const float steps = score_of(key) * (-32.0f * kLog2E);
    return static_cast<int>(min(steps, static_cast<float>(kBins - 1)));
  }
  return digit == 1 ? key >> 20 : digit == 2 ? key >> 10 & 0x3ff : key & 0x3ff;
}

struct Tally {
  uint64_t weight;  // number of tokens, or their mass
  uint64_t count;

  __device__ __forceinline__ Tally& operator+=(const Tally& other) {
    weight += other.weight;
    count += other.count;
    return *this;
  }
  __device__ __forceinline__ Tally operator-(const Tally& other) const {
    return {weight - other.weight, count - other.count};
  }
};

struct FilterLds {
  uint64_t mass[kBins];
  uint32_t count[kBins];
  uint32_t list[kListed];
  uint32_t listed;
  int chosen;     // digit in which the running weight reaches what is wanted
  Tally before;   // weight of the digits before it
  Tally through;  // weight of the digits up to it
  Tally scratch[kMaxWaves];
};

// The tokens a filter looks at: a row of scores or, once few are left, a list of their keys.
struct Candidates {
  const float* row;
  int vocab;
  float highest;
  float temperature;
  uint32_t limit;  // keys above are filtered out
  int listed;      // in FilterLds::list; -1 = use the row
};

template <class Visit>
__device__ __forceinline__ void for_each_key(const Candidates& from, const FilterLds& lds,
                                             Visit visit) {
  if (from.listed >= 0) {
    for (int i = threadIdx.x; i < from.listed; i += static_cast<int>(blockDim.x)) {
      if (lds.list[i] <= from.limit) visit(lds.list[i]);
    }
    return;
  }
  for_each_four(from.row, 0, from.vocab, [&](int token, Vec<float, 4> scores) {
    for (int k = 0; k < 4; ++k) {
      const uint32_t key = key_of(scaled(scores[k], from.highest, from.temperature));
      if (token + k < from.vocab && key <= from.limit) visit(key);
    }
  });
}

// Finds the bin in which the running weight, which is `before` at bin 0, reaches wanted(total).
template <class Wanted>
__device__ __forceinline__ void choose_bin(FilterLds& lds, bool by_mass, Tally before,
                                           Wanted wanted) {
  const int per_thread = (kBins + static_cast<int>(blockDim.x) - 1) / static_cast<int>(blockDim.x);
  const int first = min(static_cast<int>(threadIdx.x) * per_thread, kBins);
  const int last = min(first + per_thread, kBins);
  const auto tally_of = [&](int bin) {
    return Tally{by_mass ? lds.mass[bin] : lds.count[bin], lds.count[bin]};
  };
  Tally own{}, total{};
  for (int bin = first; bin < last; ++bin) own += tally_of(bin);
  Tally running = block_exclusive_scan(own, lds.scratch, total);
  running += before;
  total += before;
  const uint64_t goal = wanted(total.weight);
  if (threadIdx.x == 0) lds.chosen = -1;
  __syncthreads();
  for (int bin = first; bin < last; ++bin) {
    Tally through = running;
    through += tally_of(bin);
    if (running.weight < goal && goal <= through.weight) {
      lds.chosen = bin;
      lds.before = running;
      lds.through = through;
    }
    running = through;
  }
  __syncthreads();
}

// Lowers from.limit to the first key at which the running weight, in the order of the keys,
// reaches wanted(total weight); leaves it alone where the total is smaller.
template <class Wanted>
__device__ __forceinline__ void lower_limit(Candidates& from, FilterLds& lds, bool by_mass,
                                            Wanted wanted) {
  int chosen[kDigits] = {};
  Tally before{};
  uint64_t goal = 0;
#pragma unroll
  for (int digit = 0; digit < kDigits; ++digit) {
    for (int bin = threadIdx.x; bin < kBins; bin += static_cast<int>(blockDim.x)) {
      lds.mass[bin] = 0;
      lds.count[bin] = 0;
    }
    __syncthreads();
    uint32_t in_last_bin = 0;
    for_each_key(from, lds, [&](uint32_t key) {
      for (int i = 0; i < digit; ++i) {
        if (digit_of(key, i) != chosen[i]) return;
      }
      const int bin = digit_of(key, digit);
      // At a low temperature nearly all tokens end here, without mass: no atomics for them.
      if (digit == 0 && bin == kBins - 1) {
        ++in_last_bin;
        return;
      }
      atomic_add(&lds.count[bin], 1u);
      if (by_mass) atomic_add(&lds.mass[bin], mass_of(key));
    });
    if (in_last_bin > 0) atomic_add(&lds.count[kBins - 1], in_last_bin);
    __syncthreads();
    choose_bin(lds, by_mass, before, [&](uint64_t total) {
      if (digit == 0) goal = wanted(total);
      return goal;
    });
    if (lds.chosen < 0) return;
    chosen[digit] = lds.chosen;
    before = lds.before;

    const uint64_t left = lds.through.count;
    if (digit == 0 && from.listed < 0 && left <= kListed) {
      if (threadIdx.x == 0) lds.listed = 0;
      __syncthreads();
      for_each_key(from, lds, [&](uint32_t key) {
        if (digit_of(key, 0) <= chosen[0]) lds.list[atomic_add(&lds.listed, 1u)] = key;
      });
      from.listed = static_cast<int>(left);
    }
    __syncthreads();
  }
  from.limit = static_cast<uint32_t>(chosen[1]) << 20 | static_cast<uint32_t>(chosen[2]) << 10 |
               static_cast<uint32_t>(chosen[3]);
}

// The token of a row: its target if it has one (not -1), else the chosen one; -1 where a score is
// NaN or the largest is infinite.
__device__ __forceinline__ int token_of_row(float highest, int target, int chosen) {
  return !is_finite(highest) ? kNoToken : target >= 0 ? target : chosen;
}

}  // namespace rf

// Copies logits to scores and applies penalties and bias there. Grid: (parts, L).
// source[row] is the row of previous_tokens that was seen once more than the lists say, or -1.
// Tokens of a row are distinct in the list of seen ones, and in that of biased ones.
extern "C" __global__ __launch_bounds__(256) void rf_sample_adjust(
    const float* __restrict__ logits, float* __restrict__ scores,
    const float* __restrict__ repetition, const float* __restrict__ presence,
    const float* __restrict__ frequency, const int32_t* __restrict__ seen_offsets,
    const int32_t* __restrict__ seen_tokens, const int32_t* __restrict__ seen_counts,
    const int32_t* __restrict__ bias_offsets, const int32_t* __restrict__ bias_tokens,
    const float* __restrict__ bias_values, const int32_t* __restrict__ source,
    const int32_t* __restrict__ previous_tokens, int32_t vocab) {
  __shared__ int pending_listed;
  const int row = blockIdx.y;
  const int64_t first = static_cast<int64_t>(row) * vocab;
  const rf::TokenRange range = rf::token_range(vocab);
  float* own = scores + first;
  const int thread = threadIdx.x;
  const int threads = blockDim.x;
  for (int i = range.begin + thread; i < range.end; i += threads) own[i] = logits[first + i];
  if (thread == 0) pending_listed = 0;
  __syncthreads();

  const auto inside = [&](int token) { return token >= range.begin && token < range.end; };
  const float row_repetition = repetition[row];
  const float row_presence = presence[row];
  const float row_frequency = frequency[row];
  if (row_repetition != 1.0f || row_presence != 0.0f || row_frequency != 0.0f) {
    const auto penalize = [&](int token, int count) {
      float score = own[token];
      score = score > 0.0f ? score / row_repetition : score * row_repetition;
      if (count > 0) score -= row_presence + row_frequency * static_cast<float>(count);
      own[token] = score;
    };
    const int pending = source[row] >= 0 ? previous_tokens[source[row]] : rf::kNoToken;
    for (int i = seen_offsets[row] + thread; i < seen_offsets[row + 1]; i += threads) {
      const int token = seen_tokens[i];
      if (!inside(token)) continue;
      if (token == pending) pending_listed = 1;
      penalize(token, seen_counts[i] + (token == pending ? 1 : 0));
    }
    __syncthreads();
    if (thread == 0 && inside(pending) && !pending_listed) penalize(pending, 1);
  }
  __syncthreads();
  for (int i = bias_offsets[row] + thread; i < bias_offsets[row + 1]; i += threads) {
    if (inside(bias_tokens[i])) own[bias_tokens[i]] += bias_values[i];
  }
}

// Forbids the tokens whose bit is 0: bit t % 32 of word t / 32 of allowed [L, ceil(V / 32)] is for
// token t. Changes scores in place. Grid: (parts, L).
extern "C" __global__ __launch_bounds__(256) void rf_sample_mask(
    float* __restrict__ scores, const uint32_t* __restrict__ allowed, int32_t vocab) {
  const int64_t row = blockIdx.y;
  const uint32_t* words = allowed + row * ((vocab + 31) / 32);
  const rf::TokenRange range = rf::token_range(vocab);
  for (int token = range.begin + static_cast<int>(threadIdx.x); token < range.end;
       token += static_cast<int>(blockDim.x)) {
    const bool is_allowed = words[token / 32] >> token % 32 & 1;
    if (!is_allowed) scores[row * vocab + token] = rf::kNoScore;
  }
}

// The best token of each part of each row: highest [L, parts]; of each row, unless tokens [L] is
// null, as rows draw: then rf_sample_draw finds tokens. arrived: [L], see last_block.h. Grid:
// (parts, L).
extern "C" __global__ __launch_bounds__(256) void rf_sample_max(
    const float* __restrict__ scores, rf::Best* __restrict__ highest, uint32_t* arrived,
    const int32_t* __restrict__ target, int32_t* __restrict__ tokens, int32_t vocab) {
  __shared__ rf::Best scratch[rf::kMaxWaves];
  const int row = blockIdx.y;
  const int parts = gridDim.x;
  const rf::TokenRange range = rf::token_range(vocab);
  rf::Best best = rf::kWorst;
  rf::for_each_four(scores + static_cast<int64_t>(row) * vocab, range.begin, range.end,
                    [&](int token, rf::Vec<float, 4> four) {
                      for (int k = 0; k < 4; ++k) best = rf::better(best, {four[k], token + k});
                    });
  best = rf::block_reduce(best, scratch, rf::better);
  if (threadIdx.x == 0) highest[row * parts + blockIdx.x] = best;
  if (!tokens || !rf::is_last_block(arrived + row, parts)) return;
  best = rf::best_of_block(highest + row * parts, parts, scratch);
  if (threadIdx.x == 0) tokens[row] = rf::token_of_row(best.score, target[row], best.token);
}

// The key of the last token that min-p, top-k and top-p let pass. Grid: (L).
// log_min_p is log(min_p), minus infinity for none.
extern "C" __global__ __launch_bounds__(1024) void rf_sample_filter(
    const float* __restrict__ scores, const rf::Best* __restrict__ highest,
    const float* __restrict__ temperature, const float* __restrict__ log_min_p,
    const int32_t* __restrict__ top_k, const float* __restrict__ top_p,
    uint32_t* __restrict__ limits, int32_t vocab, int32_t parts) {
  __shared__ rf::FilterLds lds;
  __shared__ rf::Best scratch[rf::kMaxWaves];
  const int row = blockIdx.x;
  const float row_highest = rf::best_of_block(highest + row * parts, parts, scratch).score;
  rf::Candidates from{scores + static_cast<int64_t>(row) * vocab,
                      vocab,
                      row_highest,
                      temperature[row],
                      rf::key_of(log_min_p[row]),
                      -1};
  if (rf::is_finite(row_highest) && from.temperature > 0.0f) {
    const int k = top_k[row];
    if (k > 0 && k < vocab) {
      rf::lower_limit(from, lds, false, [k](uint64_t) { return static_cast<uint64_t>(k); });
    }
    const double p = top_p[row];
    if (p < 1.0) {
      rf::lower_limit(from, lds, true, [p](uint64_t total) {
        const double share = p * static_cast<double>(total);
        const auto whole = static_cast<uint64_t>(share);
        return whole + (static_cast<double>(whole) < share || whole == 0 ? 1 : 0);
      });
    }
  }
  if (threadIdx.x == 0) limits[row] = from.limit;
}

// The best token of each part of each row with noise added, for rows with a temperature: drawn
// [L, parts]. Then the tokens [L] of all rows. limits may be null: no row has a filter. arrived:
// [L], see last_block.h. Grid: (parts, L); highest is [L, parts].
extern "C" __global__ __launch_bounds__(256) void rf_sample_draw(
    const float* __restrict__ scores, const rf::Best* __restrict__ highest,
    const float* __restrict__ temperature, const uint32_t* __restrict__ limits,
    const uint64_t* __restrict__ seed, const int32_t* __restrict__ position,
    rf::Best* __restrict__ drawn, uint32_t* arrived, const int32_t* __restrict__ target,
    int32_t* __restrict__ tokens, int32_t vocab) {
  __shared__ rf::Best scratch[rf::kMaxWaves];
  const int row = blockIdx.y;
  const int parts = gridDim.x;
  const float row_temperature = temperature[row];
  const rf::Best top = rf::best_of_block(highest + row * parts, parts, scratch);
  const bool draws = row_temperature > 0.0f && rf::is_finite(top.score);
  if (draws) {
    const uint32_t limit = limits ? limits[row] : rf::key_of(rf::kNoScore);
    const uint64_t row_seed = seed[row];
    const int row_position = position[row];
    const rf::TokenRange range = rf::token_range(vocab);
    rf::Best best = rf::kWorst;
    rf::for_each_four(scores + static_cast<int64_t>(row) * vocab, range.begin, range.end,
                      [&](int token, rf::Vec<float, 4> four) {
                        bool any_kept = false;
                        for (int k = 0; k < 4; ++k) {
                          four[k] = rf::scaled(four[k], top.score, row_temperature);
                          if (rf::key_of(four[k]) > limit) four[k] = rf::kNoScore;
                          any_kept |= four[k] > rf::kNoScore;
                        }
                        if (!any_kept) return;
                        four += rf::gumbel4(row_seed, row_position, token);
                        for (int k = 0; k < 4; ++k) best = rf::better(best, {four[k], token + k});
                      });
    best = rf::block_reduce(best, scratch, rf::better);
    if (threadIdx.x == 0) drawn[row * parts + blockIdx.x] = best;
  }
  if (!rf::is_last_block(arrived + row, parts)) return;
  int token = top.token;
  if (draws) token = rf::best_of_block(drawn + row * parts, parts, scratch).token;
  if (threadIdx.x == 0) tokens[row] = rf::token_of_row(top.score, target[row], token);
}
