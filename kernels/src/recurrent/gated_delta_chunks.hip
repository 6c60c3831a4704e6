// The gated delta rule in chunks of 64 tokens, on matrix instructions: delta_chunks.h has the
// formulas. Operands are halves, sums and states float32.
#include "rf/recurrent/delta_chunks.h"

namespace rf {

inline constexpr int kSolveStride = kStateChunk + 4;  // of floats

// Queries and P are that much larger as halves, and results are divided by it again. They are at
// most 1 / sqrt(kStateChunkDim), and P decays: what is below 2^-14 has fewer bits as a half, and
// counts as zero where kFlushesHalves.
inline constexpr float kScoreFactor = 0x1p16f;

// Column `column` of (I + A)^-1, with A strictly lower triangular. a: A^T.
__device__ __forceinline__ void solve_column(const float* a, int column, float (&x)[kStateChunk]) {
#pragma unroll
  for (int t = 0; t < kStateChunk; ++t) {
    x[t] = max(0.0f, 1.0f - abs(static_cast<float>(t - column)));  // no mask for each t
  }
#pragma unroll
  for (int i = 0; i < kStateChunk - 1; ++i) {
#pragma unroll
    for (int four = (i + 1) / 4; four < kStateChunk / 4; ++four) {
      const Four factors = load16(a + i * kSolveStride + four * 4);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (four * 4 + k > i) x[four * 4 + k] = fma(-factors[k], x[i], x[four * 4 + k]);
      }
    }
  }
}

}  // namespace rf

// Makes T, P and what goes with them. Arguments as those of rf_gated_delta, and DeltaChunks.
// Grid: (value_heads, chunks of the longest sequence, sequences), block: 4 waves.
extern "C" __global__ __launch_bounds__(rf::kStateChunkThreads) void rf_gated_delta_solve(
    const float* __restrict__ qkv, const float* __restrict__ alpha, const float* __restrict__ beta,
    const float* __restrict__ decay, const float* __restrict__ dt_bias,
    const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,
    const int32_t* __restrict__ context_len, const int32_t* __restrict__ reads,
    const int32_t* __restrict__ writes, rf::half* __restrict__ keys, rf::half* __restrict__ queries,
    rf::half* __restrict__ keys_t, rf::half* __restrict__ solve, rf::half* __restrict__ scores,
    float* __restrict__ decays, int64_t qkv_stride, int64_t alpha_stride, int64_t beta_stride,
    int32_t key_heads, int32_t value_heads, int32_t tiled_heads, float eps) {
  using namespace rf;
  alignas(16) __shared__ half q_tile[kStateChunk * kKeyStride];
  alignas(16) __shared__ half k_tile[kStateChunk * kKeyStride];
  __shared__ float log_kept[kStateChunk], strength[kStateChunk];
  static_assert(sizeof(q_tile) >= kStateChunk * kSolveStride * sizeof(float));

  const auto own =
      RecurrentSequence::of({sequences, query_start, context_len, reads, writes}, blockIdx.z);
  const int begin = static_cast<int>(blockIdx.y) * kStateChunk;
  if (begin >= own.tokens) return;
  const int count = min(kStateChunk, own.tokens - begin);
  const DeltaChunks chunks{keys, queries, keys_t, solve, scores, decays, key_heads, value_heads};
  const int64_t chunk = state_chunk(own, blockIdx.z, blockIdx.y);
  const int64_t first = own.first + begin;
  const int head = blockIdx.x, thread = threadIdx.x;
  const int group = value_heads / key_heads;
  const int key_head = tiled_heads ? head % key_heads : head / group;
  // Value heads share keys: one of them passes these on.
  const bool passes_keys = tiled_heads ? head < key_heads : head % group == 0;
  const int64_t key_place = chunks.of_keys(chunk, key_head);

  constexpr int kRowLanes = kStateChunkDim / 4;
  const int column = thread % kRowLanes * 4;
  const auto norm = [&](int row, Four x, float scale, half* tile, half* passed) {
    const Four squares = x * x;
    const float length = wave_sum<kRowLanes>((squares[0] + squares[1]) + (squares[2] + squares[3]));
    const float factor = rsqrt(length + eps) * scale;
    Vec<half, 4> halves;
    for (int i = 0; i < 4; ++i) halves[i] = to_half(x[i] * factor);
    *reinterpret_cast<Vec<half, 4>*>(tile + row * kKeyStride + column) = halves;
    half* there = passed + key_place + row * kStateChunkDim + column;
    if (passes_keys) *reinterpret_cast<Vec<half, 4>*>(there) = halves;
  };
  for_rows(qkv + first * qkv_stride + key_head * kStateChunkDim, qkv_stride,
           static_cast<int64_t>(key_heads) * kStateChunkDim, count, [&](int row, Four q, Four k) {
             norm(row, q, kScoreFactor * rsqrt(static_cast<float>(kStateChunkDim)), q_tile,
                  queries);
             norm(row, k, 1.0f, k_tile, keys);
           });
  if (thread < kStateChunk) {
    const bool there = thread < count;
    const int64_t token = first + (there ? thread : 0);
    const float g = decay[head] * softplus(alpha[token * alpha_stride + head] + dt_bias[head]);
    log_kept[thread] = there ? g : 0.0f;
    strength[thread] = there ? sigmoid(beta[token * beta_stride + head]) : 0.0f;
  }
  __syncthreads();
  float sum = 0.0f, total = 0.0f;
  for (int i = 0; i < kStateChunk; ++i) {
    total += log_kept[i];
    if (i == thread) sum = total;
  }
  __syncthreads();
  if (thread < kStateChunk) {
    log_kept[thread] = sum;
    float* own_decays = decays + chunks.of_decays(chunk, head);
    own_decays[thread] = exp(sum);
    own_decays[kStateChunk + thread] = exp(total - sum);
  }
  __syncthreads();

  if (passes_keys) pass_transposed(k_tile, keys_t + key_place);

  const int wave = uniform(wave_id());
  const HalfRows q_rows{q_tile, kKeyStride}, k_rows{k_tile, kKeyStride};
  constexpr int kTiles = kStateChunk / 16;
  Mma::Acc of_keys[kTiles]{}, of_queries[kTiles]{};
#pragma unroll kStepUnroll
  for (int step = 0; step < kStateChunkDim / 8; step += LdsMma::kStepChunks) {
    const auto k = LdsMma::load_a(k_rows, wave * 16, step);
    const auto q = LdsMma::load_a(q_rows, wave * 16, step);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile > wave) continue;  // later keys
      const auto other = LdsMma::load_b(k_rows, tile * 16, step);
      LdsMma::multiply(of_keys[tile], k, other);
      LdsMma::multiply(of_queries[tile], q, other);
    }
  }
  __syncthreads();

  float* a = reinterpret_cast<float*>(q_tile);  // A^T
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < kAccValues; ++i) {
      const int token = wave * 16 + Mma::row(i), key = tile * 16 + Mma::column(i);
      const float kept = key <= token ? exp(log_kept[token] - log_kept[key]) : 0.0f;
      const float score = kept * of_queries[tile].value[i];
      k_tile[token * kTokenStride + key] = to_half(score);
      a[key * kSolveStride + token] =
          key < token ? strength[token] * kept * of_keys[tile].value[i] : 0.0f;
    }
  }
  __syncthreads();
  pass_scores(k_tile, scores + chunks.of_tokens(chunk, head));

  if (thread >= kStateChunk) return;
  float x[kStateChunk];
  solve_column(a, thread, x);
  half* own_solve = solve + chunks.of_tokens(chunk, head) + thread;
#pragma unroll
  for (int t = 0; t < kStateChunk; ++t)
    own_solve[t * kStateChunk] = to_half(x[t] * strength[thread]);
}

namespace rf {

// Walks over the chunks of a sequence with kColumns of a state, and keeps the last one alone.
template <int kColumns>
__device__ __forceinline__ void walk_chunks(const float* qkv, const RecurrentStep& sequences,
                                            const DeltaChunks& chunks, float* state, float* out,
                                            int64_t qkv_stride, bool tiled_heads) {
  constexpr int kColumnTiles = kColumns / 16;
  constexpr int kKeyTiles = kStateChunkDim / (16 * kStateChunkWaves);  // of a wave
  constexpr int kKeyChunks = kStateChunkDim / 8, kTokenChunks = kStateChunk / 8;
  constexpr int kKeySteps = kKeyChunks / Mma::kStepChunks;
  constexpr int kTokenSteps = kTokenChunks / Mma::kStepChunks;
  // Transposed: rows are columns of the state.
  alignas(16) __shared__ half state_tile[kColumns * kKeyStride];
  alignas(16) __shared__ half error_tile[kColumns * kTokenStride];
  alignas(16) __shared__ half change_tile[kColumns * kTokenStride];
  alignas(16) __shared__ half kept_tile[kColumns * kTokenStride];

  const auto own = RecurrentSequence::of(sequences, blockIdx.z);
  if (own.tokens == 0) return;
  const int key_heads = chunks.key_heads, value_heads = chunks.value_heads;
  const int head = blockIdx.y, first_column = static_cast<int>(blockIdx.x) * kColumns;
  const int key_head = tiled_heads ? head % key_heads : head / (value_heads / key_heads);
  const int wave = uniform(wave_id());
  const int first_token = wave * 16, first_key = wave * 16 * kKeyTiles;
  // What follows is zero: T and P are triangular.
  const int token_steps = ((wave + 1) * 2 + Mma::kStepChunks - 1) / Mma::kStepChunks;

  const auto state_in = [&](int64_t slot) {
    return state + (slot * value_heads + head) * kStateChunkDim * kStateChunkDim;
  };
  const float* before = state_in(own.slot);
  const auto state_place = [&](int tile, int key_tile, int i) {
    const int key = first_key + key_tile * 16 + Mma::column(i);
    return key * kStateChunkDim + first_column + tile * 16 + Mma::row(i);
  };
  Mma::Acc s[kColumnTiles][kKeyTiles];
#pragma unroll
  for (int tile = 0; tile < kColumnTiles; ++tile) {
#pragma unroll
    for (int key_tile = 0; key_tile < kKeyTiles; ++key_tile) {
#pragma unroll
      for (int i = 0; i < kAccValues; ++i) {
        s[tile][key_tile].value[i] = own.reads ? before[state_place(tile, key_tile, i)] : 0.0f;
      }
    }
  }

  const float* own_values =
      qkv + (2 * key_heads + head) * kStateChunkDim + first_column + own.first * qkv_stride;
  float* own_out = out + (own.first * value_heads + head) * kStateChunkDim + first_column;
  const HalfRows state_rows{state_tile, kKeyStride}, error_rows{error_tile, kTokenStride};
  const HalfRows change_rows{change_tile, kTokenStride}, kept_rows{kept_tile, kTokenStride};

  // What a chunk needs is on its way from the moment on when that of the chunk before was used.
  RowsAhead<kKeyChunks, false> key_rows, query_rows;
  RowsAhead<kTokenChunks, false> solve_rows, score_rows;
  RowsAhead<kTokenChunks, true> key_columns[kKeyTiles];
  float values[kAccValues][kColumnTiles], kept[kAccValues], kept_to_end[kAccValues], kept_state;
  const auto is_token = [&](int begin, int i) {
    return begin + first_token + Mma::row(i) < own.tokens;
  };
  const auto start_keys = [&](int64_t chunk) {
    const int64_t place = chunks.of_keys(chunk, key_head);
    key_rows.start({chunks.keys + place, kStateChunkDim}, first_token);
    query_rows.start({chunks.queries + place, kStateChunkDim}, first_token);
  };
  const auto start_values = [&](int begin) {
#pragma unroll
    for (int i = 0; i < kAccValues; ++i) {
      const int token = first_token + Mma::row(i);
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) {
        const float* row = own_values + (begin + token) * qkv_stride + tile * 16;
        values[i][tile] = is_token(begin, i) ? row[Mma::column(i)] : 0.0f;
      }
    }
  };
  const auto start_solve = [&](int64_t chunk) {
    solve_rows.start({chunks.solve + chunks.of_tokens(chunk, head), kStateChunk}, first_token);
  };
  const auto start_scores = [&](int64_t chunk) {
    score_rows.start({chunks.scores + chunks.of_tokens(chunk, head), kStateChunk}, first_token);
  };
  const auto start_columns = [&](int64_t chunk) {
    const float* own_decays = chunks.decays + chunks.of_decays(chunk, head);
#pragma unroll
    for (int i = 0; i < kAccValues; ++i) {
      kept[i] = own_decays[first_token + Mma::row(i)];
      kept_to_end[i] = own_decays[kStateChunk + first_token + Mma::row(i)];
    }
    kept_state = own_decays[kStateChunk - 1];
#pragma unroll
    for (int key_tile = 0; key_tile < kKeyTiles; ++key_tile) {
      key_columns[key_tile].start({chunks.keys_t + chunks.of_keys(chunk, key_head), kStateChunk},
                                  first_key + key_tile * 16);
    }
  };
  int64_t chunk = state_chunk(own, blockIdx.z, 0);
  start_keys(chunk);
  start_values(0);
  start_solve(chunk);
  start_scores(chunk);
  start_columns(chunk);

  for (int begin = 0; begin < own.tokens; begin += kStateChunk) {
    const bool has_next = begin + kStateChunk < own.tokens;
    ++chunk;  // the next one

    // K S and Q S.
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; ++tile) {
#pragma unroll
      for (int key_tile = 0; key_tile < kKeyTiles; ++key_tile) {
#pragma unroll
        for (int i = 0; i < kAccValues; ++i) {
          const int key = first_key + key_tile * 16 + Mma::column(i);
          state_tile[(tile * 16 + Mma::row(i)) * kKeyStride + key] =
              act_half(s[tile][key_tile].value[i]);
        }
      }
    }
    lds_barrier();
    Mma::Acc of_keys[kColumnTiles]{}, result[kColumnTiles]{};
#pragma unroll kStepUnroll
    for (int step = 0; step < kKeySteps; ++step) {
      const auto k = key_rows[step];
      const auto q = query_rows[step];
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) {
        const auto other = Mma::load_b(state_rows, tile * 16, step * Mma::kStepChunks);
        Mma::multiply(of_keys[tile], k, other);
        Mma::multiply(result[tile], q, other);
      }
    }

    if (has_next) start_keys(chunk);

    // V - e^G K S.
#pragma unroll
    for (int i = 0; i < kAccValues; ++i) {
      const int token = first_token + Mma::row(i);
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) {
        const int column = tile * 16 + Mma::column(i);
        error_tile[column * kTokenStride + token] =
            act_half(values[i][tile] - kept[i] * of_keys[tile].value[i]);
        result[tile].value[i] *= kept[i];
      }
    }
    if (has_next) start_values(begin + kStateChunk);
    lds_barrier();

    // D.
    Mma::Acc change[kColumnTiles]{};
#pragma unroll kStepUnroll
    for (int step = 0; step < kTokenSteps; ++step) {
      if (step >= token_steps) continue;
      const auto rows = solve_rows[step];
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) {
        Mma::multiply(change[tile], rows,
                      Mma::load_b(error_rows, tile * 16, step * Mma::kStepChunks));
      }
    }
    if (has_next) start_solve(chunk);
#pragma unroll
    for (int i = 0; i < kAccValues; ++i) {
      const int token = first_token + Mma::row(i);
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) {
        const int place = (tile * 16 + Mma::column(i)) * kTokenStride + token;
        change_tile[place] = act_half(change[tile].value[i]);
        kept_tile[place] = act_half(change[tile].value[i] * kept_to_end[i]);
      }
    }
    lds_barrier();

    // Results.
#pragma unroll kStepUnroll
    for (int step = 0; step < kTokenSteps; ++step) {
      if (step >= token_steps) continue;
      const auto rows = score_rows[step];
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) {
        Mma::multiply(result[tile], rows,
                      Mma::load_b(change_rows, tile * 16, step * Mma::kStepChunks));
      }
    }
    if (has_next) start_scores(chunk);
#pragma unroll
    for (int i = 0; i < kAccValues; ++i) {
      if (!is_token(begin, i)) continue;
      const int64_t token = begin + first_token + Mma::row(i);
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) {
        own_out[token * value_heads * kStateChunkDim + tile * 16 + Mma::column(i)] =
            result[tile].value[i] * (1.0f / kScoreFactor);
      }
    }

    // The next state.
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; ++tile) {
#pragma unroll
      for (int key_tile = 0; key_tile < kKeyTiles; ++key_tile) {
#pragma unroll
        for (int i = 0; i < kAccValues; ++i) s[tile][key_tile].value[i] *= kept_state;
      }
    }
#pragma unroll kStepUnroll
    for (int step = 0; step < kTokenSteps; ++step) {
      decltype(Mma::load_a(kept_rows, 0, 0)) rows[kColumnTiles];
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) {
        rows[tile] = Mma::load_a(kept_rows, tile * 16, step * Mma::kStepChunks);
      }
#pragma unroll
      for (int key_tile = 0; key_tile < kKeyTiles; ++key_tile) {
        const auto columns = key_columns[key_tile][step];
#pragma unroll
        for (int tile = 0; tile < kColumnTiles; ++tile) {
          Mma::multiply(s[tile][key_tile], rows[tile], columns);
        }
      }
    }
    if (has_next) start_columns(chunk);
  }

  const int64_t slot = own.last_slot();
  if (slot < 0) return;
  float* after = state_in(slot);
#pragma unroll
  for (int tile = 0; tile < kColumnTiles; ++tile) {
#pragma unroll
    for (int key_tile = 0; key_tile < kKeyTiles; ++key_tile) {
#pragma unroll
      for (int i = 0; i < kAccValues; ++i) {
        after[state_place(tile, key_tile, i)] = s[tile][key_tile].value[i];
      }
    }
  }
}

}  // namespace rf

// Arguments as those of rf_gated_delta, and DeltaChunks. A block has 32 columns of a state, or with
// _c16 half as many, for GPUs that so few blocks do not fill: all bits are the same.
// Grid: (128 / columns, value_heads, sequences), block: 4 waves.
#define RF_GATED_DELTA_CHUNKS(name, kColumns)                                                     \
  extern "C" __global__ __launch_bounds__(rf::kStateChunkThreads) void name(                      \
      const float* __restrict__ qkv, const int32_t* __restrict__ sequences,                       \
      const int32_t* __restrict__ query_start, const int32_t* __restrict__ context_len,           \
      const int32_t* __restrict__ reads, const int32_t* __restrict__ writes,                      \
      rf::half* __restrict__ keys, rf::half* __restrict__ queries, rf::half* __restrict__ keys_t, \
      rf::half* __restrict__ solve, rf::half* __restrict__ scores, float* __restrict__ decays,    \
      float* __restrict__ state, float* __restrict__ out, int64_t qkv_stride, int32_t key_heads,  \
      int32_t value_heads, int32_t tiled_heads) {                                                 \
    rf::walk_chunks<kColumns>(                                                                    \
        qkv, {sequences, query_start, context_len, reads, writes},                                \
        {keys, queries, keys_t, solve, scores, decays, key_heads, value_heads}, state, out,       \
        qkv_stride, tiled_heads != 0);                                                            \
  }
RF_GATED_DELTA_CHUNKS(rf_gated_delta_chunks, rf::kStateChunkColumns)
RF_GATED_DELTA_CHUNKS(rf_gated_delta_chunks_c16, rf::kNarrowStateColumns)
