// Products of few tokens with the matrices of heads, in launches that do what lies around them:
// latent.hip and experts_gemv.hip have each of these steps alone, and the same bits.
#include "rf/activations/act_output.h"
#include "rf/attention/latent.h"
#include "rf/experts/experts.h"
#include "rf/gemv/gemv_deferred.h"

namespace rf {

// A block takes the beginning of a query into the latent space, 16 elements of it.
template <class Format>
__device__ __forceinline__ void absorb_query(const ExpertMatrices& matrices,
                                             const LatentQueries& queries, int64_t token, int head,
                                             int tile) {
  alignas(16) __shared__ int8_t q[kMostPlainDim];
  alignas(16) __shared__ ActScale scale[kMostPlainDim / kActBlock];
  const Outputs outputs{queries.rank, kNotGated};
  const Activations x{q, scale, 1, 1, queries.plain_dim / kActBlock};
  const GemvTile<1> own(tile);
  Format rows[kGroups];
  expert_rows(matrices, head, outputs, x.quant_blocks, own, rows);
  const int first_quant_blocks[1] = {0};
  float sums[1][kGroups] = {};
  gemv_dot(rows, x, first_quant_blocks, GemvTile<1>::first_piece(), GemvTile<1>::piece_step(), sums,
           [&] {
             // Every block rounds the query for itself: it would wait longer for one that does.
             const float* row = queries.row(token, head);
             for (int first = 0; first < queries.plain_dim; first += blockDim.x * 4) {
               const int i = first + static_cast<int>(threadIdx.x) * 4;
               const bool inside = i < queries.plain_dim;
               const int block = inside ? i / kActBlock : 0;
               act_store(inside ? load16(row + i) : Vec<float, 4>{}, inside, q + block * kActBlock,
                         scale + block, 0);
             }
             prepare<Format>();
             __syncthreads();
           });
  half* to = queries.out(token, head) + queries.rotary_dim;
  own.finish(sums, outputs, 1,
             [&](int, int column, float value, float) { to[column] = to_half(value); });
}

// Rows of the grid behind those of products rotate queries, and store rows of the cache.
template <class Format>
__device__ __forceinline__ void absorb(const ExpertMatrices& matrices, const LatentQueries& queries,
                                       const LatentInput& in, uint8_t* cache, float* scale) {
  const int tiles = static_cast<int>(gridDim.y) - 2;
  const int tile = static_cast<int>(blockIdx.y);
  const int64_t pair = blockIdx.x;
  if (tile <= tiles) {
    const int64_t token = pair / queries.heads;
    const int head = static_cast<int>(pair - token * queries.heads);
    if (tile < tiles) {
      absorb_query<Format>(matrices, queries, token, head, tile);
    } else if (wave_id() == 0) {
      queries.rotate(token, head);
    }
    return;
  }
  if (wave_id() != 0 || pair >= static_cast<int>(gridDim.x) / queries.heads) return;
  if (scale) {
    latent_store(in, pair, reinterpret_cast<int8_t*>(cache), scale);
  } else {
    latent_store(in, pair, reinterpret_cast<half*>(cache), nullptr);
  }
}

// Half of the block has a tile each; together they make a block of the activation that the output
// matrix is multiplied with.
template <class Format>
__device__ __forceinline__ void expand(const ExpertMatrices& matrices, const Activations& x,
                                       int heads, int features, const ActOutput& out) {
  __shared__ DeferredParts<kGemvThreads / kDeferredTiles> parts;
  const int64_t pair = blockIdx.x;
  const int threads = static_cast<int>(blockDim.x) / kDeferredTiles;
  const int own = uniform(static_cast<int>(threadIdx.x) / threads);
  const int thread = static_cast<int>(threadIdx.x) - own * threads;
  const int block = static_cast<int>(blockIdx.y);
  const Outputs outputs{features, kNotGated};
  const GemvTile<1> tile(block * kDeferredTiles + own);
  Format rows[kGroups];
  expert_rows(matrices, static_cast<int>(pair % heads), outputs, x.quant_blocks, tile, rows);
  const int first_quant_blocks[1] = {static_cast<int>(pair) * x.quant_blocks};
  float sums[1][kGroups] = {};
  gemv_dot(rows, x, first_quant_blocks, thread / kGroupRows, threads / kGroupRows, sums,
           [] { prepare<Format>(); });
  store_sums(sums, x, parts.sums[own][thread / kWave]);
  __syncthreads();
  if (wave_id() != 0) return;
  if (lane_id() < kActBlock) {
    parts.columns[lane_id()] = column_sum(parts, threads / kWave, lane_id());
  }
  wave_sync();
  const int four = lane_id() % kActLanes * 4;
  out.store(pair * features + block * kActBlock + four, load16(parts.columns + four),
            lane_id() < kActLanes);
}

}  // namespace rf

// What rf_latent_queries, rf_quantize_act with one slice, rf_experts_down_<name>_s1 and
// rf_join_heads make of few queries, and what rf_latent_store_* does with their tokens: see there
// for what is not named here. weight: the matrices of heads, of `head_bytes` each, [rank,
// plain_dim], where plain_dim is a multiple of 32 and at most 512. cache: of int8 if scale is not
// null, else of halves. q_stride is a multiple of 4. Grid: (T * heads, stored rows / 16 + 2), block
// 64 to 256.
#define RF_LATENT_ABSORB(name, Format)                                                           \
  extern "C" __global__ __launch_bounds__(rf::kGemvThreads) void rf_latent_absorb_##name(        \
      const uint8_t* __restrict__ weight, const float* __restrict__ q,                           \
      const float* __restrict__ kv, const float* __restrict__ norm,                              \
      const float* __restrict__ cosine, const float* __restrict__ sine,                          \
      const int32_t* __restrict__ positions, const int64_t* __restrict__ slots,                  \
      rf::half* __restrict__ rows, uint8_t* __restrict__ cache, float* __restrict__ scale,       \
      int32_t* __restrict__ chosen, float* __restrict__ weights, int64_t head_bytes,             \
      int64_t q_stride, int64_t kv_stride, int32_t heads, int32_t plain_dim, int32_t rotary_dim, \
      int32_t rank, int32_t neox, float eps) {                                                   \
    rf::absorb<rf::Format>(                                                                      \
        {weight, nullptr, head_bytes},                                                           \
        {q, cosine, sine, positions, rows, chosen, weights, q_stride, heads, plain_dim,          \
         rotary_dim, rank, neox != 0},                                                           \
        {kv, norm, cosine, sine, positions, slots, kv_stride, rank, rotary_dim, neox != 0, eps}, \
        cache, scale);                                                                           \
  }

// What rf_experts_down_<name>_s1 makes of the results of heads, also rounded to int8. weight: the
// matrices of heads, of `head_bytes` each. q, scale: an activation [T * heads, 32 * quant_blocks]
// of one slice. out: [T * heads, out_features] in the forms that are not null; out_features is a
// multiple of 32. Grid: (T * heads, out_features / 32), block twice that of
// rf_experts_down_<name>_s1 and at most 256.
#define RF_LATENT_EXPAND(name, Format)                                                             \
  extern "C" __global__ __launch_bounds__(rf::kGemvThreads) void rf_latent_expand_##name(          \
      const uint8_t* __restrict__ weight, const int8_t* __restrict__ q,                            \
      const rf::ActScale* __restrict__ scale, float* out_f32, rf::half* out_f16, int8_t* out_q,    \
      rf::ActScale* out_q_scale, int32_t out_q_lo_offset, int64_t head_bytes, int32_t heads,       \
      int32_t out_features, int32_t quant_blocks) {                                                \
    rf::expand<rf::Format>({weight, nullptr, head_bytes},                                          \
                           {q, scale, static_cast<int>(gridDim.x), 1, quant_blocks}, heads,        \
                           out_features, {out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset}); \
  }

#define RF_LATENT(name, Format, ...) \
  RF_LATENT_ABSORB(name, Format)     \
  RF_LATENT_EXPAND(name, Format)
RF_FORMATS(RF_LATENT)
