// Mamba-2's recurrence in chunks of 64 tokens, on matrix instructions (Dao and Gu 2024, section 6,
// arXiv:2405.21060). With x, B and C as rows of X, B and C, G_t the sum of a dt up to token t of a
// chunk, and S the state before it, results and next state are
//
//   Y = e^G C S^T + P X + d X,   P_ti = e^(G_t - G_i) dt_i C_t B_i, i <= t
//   S' = e^G_64 S + (e^(G_64 - G) dt X)^T B
//
// Operands are halves, sums and states float32. Tokens that the last chunk of a sequence lacks have
// dt = 0 and inputs of zeros: they change nothing.
#include "rf/recurrent/state_chunks.h"

namespace rf {

// What the first kernel passes to the second, of all chunks of a step.
struct MambaChunks {
  half* c;        // [chunks, groups, kStateChunk, kStateChunkDim]
  half* b_t;      // [chunks, groups, kStateChunkDim, kStateChunk]
  half* scores;   // P: [chunks, heads, kStateChunk, kStateChunk]
  float* decays;  // e^G and e^(G_64 - G) dt: [chunks, heads, 2, kStateChunk]
  int groups, heads;

  __device__ __forceinline__ int64_t of_group(int64_t chunk, int group) const {
    return (chunk * groups + group) * kStateChunk * kStateChunkDim;
  }
  __device__ __forceinline__ int64_t of_tokens(int64_t chunk, int head) const {
    return (chunk * heads + head) * kStateChunk * kStateChunk;
  }
  __device__ __forceinline__ int64_t of_decays(int64_t chunk, int head) const {
    return (chunk * heads + head) * 2 * kStateChunk;
  }
};

}  // namespace rf

// Makes P and what goes with it. Arguments as those of rf_mamba with a state_size of 128, and
// MambaChunks. Grid: (heads, chunks of the longest sequence, sequences), block: 4 waves.
extern "C" __global__ __launch_bounds__(rf::kStateChunkThreads) void rf_mamba_scores(
    const float* __restrict__ x_bc, const float* __restrict__ dt, const float* __restrict__ a,
    const float* __restrict__ dt_bias, const int32_t* __restrict__ sequences,
    const int32_t* __restrict__ query_start, const int32_t* __restrict__ context_len,
    const int32_t* __restrict__ reads, const int32_t* __restrict__ writes, rf::half* __restrict__ c,
    rf::half* __restrict__ b_t, rf::half* __restrict__ scores, float* __restrict__ decays,
    int64_t x_stride, int64_t dt_stride, int32_t heads, int32_t head_dim, int32_t groups) {
  using namespace rf;
  alignas(16) __shared__ half c_tile[kStateChunk * kKeyStride];
  alignas(16) __shared__ half b_tile[kStateChunk * kKeyStride];
  __shared__ float log_kept[kStateChunk], steps[kStateChunk];

  const auto own =
      RecurrentSequence::of({sequences, query_start, context_len, reads, writes}, blockIdx.z);
  const int begin = static_cast<int>(blockIdx.y) * kStateChunk;
  if (begin >= own.tokens) return;
  const int count = min(kStateChunk, own.tokens - begin);
  const MambaChunks chunks{c, b_t, scores, decays, groups, heads};
  const int64_t chunk = state_chunk(own, blockIdx.z, blockIdx.y);
  const int64_t first = own.first + begin;
  const int head = blockIdx.x, thread = threadIdx.x;
  const int group = head / (heads / groups);
  const bool passes_group = head % (heads / groups) == 0;  // heads share B and C
  const int64_t group_place = chunks.of_group(chunk, group);

  const int column = thread % (kStateChunkDim / 4) * 4;
  const auto store = [&](Four x, half* place) {
    Vec<half, 4> halves;
    for (int i = 0; i < 4; ++i) halves[i] = act_half(x[i]);
    *reinterpret_cast<Vec<half, 4>*>(place + column) = halves;
  };
  for_rows(x_bc + first * x_stride + heads * head_dim + group * kStateChunkDim, x_stride,
           static_cast<int64_t>(groups) * kStateChunkDim, count,
           [&](int row, Four own_b, Four own_c) {
             store(own_b, b_tile + row * kKeyStride);
             store(own_c, c_tile + row * kKeyStride);
             if (passes_group) store(own_c, c + group_place + row * kStateChunkDim);
           });
  if (thread < kStateChunk) {
    const bool there = thread < count;
    const int64_t token = first + (there ? thread : 0);
    const float step = softplus(dt[token * dt_stride + head] + dt_bias[head]);
    steps[thread] = there ? step : 0.0f;
    log_kept[thread] = there ? step * a[head] : 0.0f;
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
    own_decays[kStateChunk + thread] = exp(total - sum) * steps[thread];
  }
  __syncthreads();
  if (passes_group) pass_transposed(b_tile, b_t + group_place);

  const int wave = uniform(wave_id());
  const HalfRows c_rows{c_tile, kKeyStride}, b_rows{b_tile, kKeyStride};
  constexpr int kTiles = kStateChunk / 16;
  Mma::Acc products[kTiles]{};
#pragma unroll kStepUnroll
  for (int step = 0; step < kStateChunkDim / 8; step += LdsMma::kStepChunks) {
    const auto rows = LdsMma::load_a(c_rows, wave * 16, step);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile > wave) continue;  // later tokens
      LdsMma::multiply(products[tile], rows, LdsMma::load_b(b_rows, tile * 16, step));
    }
  }
  __syncthreads();
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < kAccValues; ++i) {
      const int token = wave * 16 + Mma::row(i), from = tile * 16 + Mma::column(i);
      const float kept = from <= token ? exp(log_kept[token] - log_kept[from]) * steps[from] : 0.0f;
      c_tile[token * kTokenStride + from] = act_half(kept * products[tile].value[i]);
    }
  }
  __syncthreads();
  pass_scores(c_tile, scores + chunks.of_tokens(chunk, head));
}

namespace rf {

// Walks over the chunks of a sequence with kRows of a state, and keeps the last one alone.
template <int kRows>
__device__ __forceinline__ void walk_chunks(const float* x_bc, const float* d,
                                            const RecurrentStep& sequences,
                                            const MambaChunks& chunks, float* state, float* out,
                                            int64_t x_stride, int head_dim) {
  constexpr int kRowTiles = kRows / 16;
  constexpr int kKeyTiles = kStateChunkDim / (16 * kStateChunkWaves);  // of a wave
  constexpr int kKeyChunks = kStateChunkDim / 8, kTokenChunks = kStateChunk / 8;
  constexpr int kKeySteps = kKeyChunks / Mma::kStepChunks;
  constexpr int kTokenSteps = kTokenChunks / Mma::kStepChunks;
  alignas(16) __shared__ half state_tile[kRows * kKeyStride];
  // X^T, and (e^(G_64 - G) dt X)^T.
  alignas(16) __shared__ half x_tile[kRows * kTokenStride];
  alignas(16) __shared__ half kept_tile[kRows * kTokenStride];

  const auto own = RecurrentSequence::of(sequences, blockIdx.z);
  if (own.tokens == 0) return;
  const int heads = chunks.heads;
  const int head = blockIdx.y, first_row = static_cast<int>(blockIdx.x) * kRows;
  const int group = head / (heads / chunks.groups);
  const int wave = uniform(wave_id());
  const int first_token = wave * 16, first_key = wave * 16 * kKeyTiles;
  // What follows is zero: P is triangular.
  const int token_steps = ((wave + 1) * 2 + Mma::kStepChunks - 1) / Mma::kStepChunks;

  const auto state_in = [&](int64_t slot) {
    return state + ((slot * heads + head) * head_dim + first_row) * kStateChunkDim;
  };
  const float* before = state_in(own.slot);
  const auto state_place = [&](int tile, int key_tile, int i) {
    return (tile * 16 + Mma::row(i)) * kStateChunkDim + first_key + key_tile * 16 + Mma::column(i);
  };
  Mma::Acc s[kRowTiles][kKeyTiles];
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int key_tile = 0; key_tile < kKeyTiles; ++key_tile) {
#pragma unroll
      for (int i = 0; i < kAccValues; ++i) {
        s[tile][key_tile].value[i] = own.reads ? before[state_place(tile, key_tile, i)] : 0.0f;
      }
    }
  }

  const float* own_x = x_bc + own.first * x_stride + head * head_dim + first_row;
  float* own_out = out + (own.first * heads + head) * head_dim + first_row;
  const float direct = d[head];
  const HalfRows state_rows{state_tile, kKeyStride}, x_rows{x_tile, kTokenStride};
  const HalfRows kept_rows{kept_tile, kTokenStride};
  // What a chunk needs is on its way from the moment on when that of the chunk before was used.
  RowsAhead<kKeyChunks, false> c_rows;
  RowsAhead<kTokenChunks, false> score_rows;
  RowsAhead<kTokenChunks, true> b_columns[kKeyTiles];
  float x[kAccValues][kRowTiles], kept[kAccValues], kept_to_end[kAccValues], kept_state;
  const auto is_token = [&](int begin, int i) {
    return begin + first_token + Mma::row(i) < own.tokens;
  };
  const auto start_c = [&](int64_t chunk) {
    c_rows.start({chunks.c + chunks.of_group(chunk, group), kStateChunkDim}, first_token);
  };
  const auto start_scores = [&](int64_t chunk) {
    score_rows.start({chunks.scores + chunks.of_tokens(chunk, head), kStateChunk}, first_token);
  };
  const auto start_x = [&](int begin) {
#pragma unroll
    for (int i = 0; i < kAccValues; ++i) {
      const int token = first_token + Mma::row(i);
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        const float* row = own_x + (begin + token) * x_stride + tile * 16;
        x[i][tile] = is_token(begin, i) ? row[Mma::column(i)] : 0.0f;
      }
    }
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
      b_columns[key_tile].start({chunks.b_t + chunks.of_group(chunk, group), kStateChunk},
                                first_key + key_tile * 16);
    }
  };
  int64_t chunk = state_chunk(own, blockIdx.z, 0);
  start_c(chunk);
  start_scores(chunk);
  start_x(0);
  start_columns(chunk);

  for (int begin = 0; begin < own.tokens; begin += kStateChunk) {
    const bool has_next = begin + kStateChunk < own.tokens;
    ++chunk;  // the next one
#pragma unroll
    for (int i = 0; i < kAccValues; ++i) {
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        const int place = (tile * 16 + Mma::column(i)) * kTokenStride + first_token + Mma::row(i);
        x_tile[place] = act_half(x[i][tile]);
        kept_tile[place] = act_half(x[i][tile] * kept_to_end[i]);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
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

    // C S^T and P X.
    Mma::Acc result[kRowTiles]{};
#pragma unroll kStepUnroll
    for (int step = 0; step < kKeySteps; ++step) {
      const auto rows = c_rows[step];
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        Mma::multiply(result[tile], rows,
                      Mma::load_b(state_rows, tile * 16, step * Mma::kStepChunks));
      }
    }
    if (has_next) start_c(chunk);
#pragma unroll
    for (int i = 0; i < kAccValues; ++i) {
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) result[tile].value[i] *= kept[i];
    }
#pragma unroll kStepUnroll
    for (int step = 0; step < kTokenSteps; ++step) {
      if (step >= token_steps) continue;
      const auto rows = score_rows[step];
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        Mma::multiply(result[tile], rows, Mma::load_b(x_rows, tile * 16, step * Mma::kStepChunks));
      }
    }
#pragma unroll
    for (int i = 0; i < kAccValues; ++i) {
      if (!is_token(begin, i)) continue;
      const int64_t token = begin + first_token + Mma::row(i);
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        own_out[token * heads * head_dim + tile * 16 + Mma::column(i)] =
            result[tile].value[i] + direct * x[i][tile];
      }
    }

    if (has_next) start_scores(chunk);
    if (has_next) start_x(begin + kStateChunk);

    // The next state.
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int key_tile = 0; key_tile < kKeyTiles; ++key_tile) {
#pragma unroll
        for (int i = 0; i < kAccValues; ++i) s[tile][key_tile].value[i] *= kept_state;
      }
    }
#pragma unroll kStepUnroll
    for (int step = 0; step < kTokenSteps; ++step) {
      decltype(Mma::load_a(kept_rows, 0, 0)) rows[kRowTiles];
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        rows[tile] = Mma::load_a(kept_rows, tile * 16, step * Mma::kStepChunks);
      }
#pragma unroll
      for (int key_tile = 0; key_tile < kKeyTiles; ++key_tile) {
        const auto columns = b_columns[key_tile][step];
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
          Mma::multiply(s[tile][key_tile], rows[tile], columns);
        }
      }
    }
    if (has_next) start_columns(chunk);
    lds_barrier();  // all waves are done with X
  }

  const int64_t slot = own.last_slot();
  if (slot < 0) return;
  float* after = state_in(slot);
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
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

// Arguments as those of rf_mamba with a state_size of 128 and a head_dim that is a multiple of 32,
// and MambaChunks. A block has 32 rows of a state, or with _c16 half as many, for GPUs that so few
// blocks do not fill: all bits are the same. Grid: (head_dim / rows, heads, sequences), block: 4
// waves.
#define RF_MAMBA_CHUNKS(name, kRows)                                                            \
  extern "C" __global__ __launch_bounds__(rf::kStateChunkThreads) void name(                    \
      const float* __restrict__ x_bc, const float* __restrict__ d,                              \
      const int32_t* __restrict__ sequences, const int32_t* __restrict__ query_start,           \
      const int32_t* __restrict__ context_len, const int32_t* __restrict__ reads,               \
      const int32_t* __restrict__ writes, rf::half* __restrict__ c, rf::half* __restrict__ b_t, \
      rf::half* __restrict__ scores, float* __restrict__ decays, float* __restrict__ state,     \
      float* __restrict__ out, int64_t x_stride, int32_t heads, int32_t head_dim,               \
      int32_t groups) {                                                                         \
    rf::walk_chunks<kRows>(x_bc, d, {sequences, query_start, context_len, reads, writes},       \
                           {c, b_t, scores, decays, groups, heads}, state, out, x_stride,       \
                           head_dim);                                                           \
  }
RF_MAMBA_CHUNKS(rf_mamba_chunks, rf::kStateChunkColumns)
RF_MAMBA_CHUNKS(rf_mamba_chunks_c16, rf::kNarrowStateColumns)
