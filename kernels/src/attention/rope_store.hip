// Per-head norm and rotary embedding of q and k (Su et al. 2021, RoFormer), and the write of
// k and v to the paged cache.
#include "rf/attention/rope.h"

namespace rf {

inline constexpr int kWideHeadDim = 576;
inline constexpr int kRopeThreads = 256;

struct RopeStoreInput {
  const float *q, *k, *v;        // rows q_stride, k_stride, v_stride apart
  const float *q_norm, *k_norm;  // [key_dim]; null = none
  const float *cosine, *sine;    // [rows, rotary_dim / 2]
  const float* q_gains;          // [rows], what multiplies queries; null = nothing
  const int32_t* positions;      // [T], rows of these
  const int64_t* slots;          // [T]; negative = a row of padding
  int64_t q_stride, k_stride, v_stride;
  int heads, kv_heads;
  HeadShape key;  // of queries and keys
  int value_dim;
  bool rotates_first;  // the norm comes behind rope, not before it
  bool norms_values;   // without a weight
  float eps;
};

template <int kPairs>
__device__ __forceinline__ void normalise_and_rotate(const RopeStoreInput& in,
                                                     HeadPairs<kPairs>& head, const float* norm,
                                                     const float* cosine, const float* sine) {
  if (in.rotates_first) rotate(in.key, head, cosine, sine);
  if (norm) normalise(in.key, head, norm, in.eps);
  if (!in.rotates_first) rotate(in.key, head, cosine, sine);
}

template <class Stored>
struct RopeStoreOutput {
  half* q;                                   // [T, heads * key_dim]
  typename CacheType<Stored>::Key* k_cache;  // see kv_cache.h
  typename CacheType<Stored>::Value* v_cache;
  float *k_scale, *v_scale;  // null for halves
};

// Grid: (T, enough blocks for heads + 2 * kv_heads waves). One wave a head: the heads of q, then
// those of k, then those of v. A head has at most kMaxHeadDim elements. Without kv_heads, there are
// queries only.
template <class Stored, int kMaxHeadDim>
__device__ __forceinline__ void rope_store(const RopeStoreInput& in,
                                           const RopeStoreOutput<Stored>& out) {
  const int64_t token = blockIdx.x;
  const int waves = static_cast<int>(blockDim.x) / kWave;
  const int index = uniform(static_cast<int>(blockIdx.y) * waves + wave_id());
  const int64_t slot = in.slots[token];
  if (index >= in.heads + 2 * in.kv_heads || slot < 0) return;

  constexpr int kPairs = kPairsOfLane<kMaxHeadDim>;
  const int64_t table_row = static_cast<int64_t>(in.positions[token]) * (in.key.rotary_dim / 2);
  const float* cosine = in.cosine + table_row;
  const float* sine = in.sine + table_row;

  if (index < in.heads) {
    const int column = index * in.key.dim;
    HeadPairs head = load_head<kPairs>(in.key, in.q + token * in.q_stride + column);
    normalise_and_rotate(in, head, in.q_norm, cosine, sine);
    if (in.q_gains) scale_head(in.key, head, in.q_gains[in.positions[token]], nullptr);
    store_head(in.key, head, out.q + (token * in.heads + index) * in.key.dim);
    return;
  }

  const bool is_key = index < in.heads + in.kv_heads;
  const int kv_head = index - in.heads - (is_key ? 0 : in.kv_heads);
  const int64_t row =
      cache_row(slot / kBlockTokens, static_cast<int>(slot % kBlockTokens), kv_head, in.kv_heads);
  if (is_key) {
    const int column = kv_head * in.key.dim;
    HeadPairs head = load_head<kPairs>(in.key, in.k + token * in.k_stride + column);
    normalise_and_rotate(in, head, in.k_norm, cosine, sine);
    store_cached(in.key, head, out.k_cache + row * in.key.dim, out.k_scale + row);
  } else {
    const HeadShape value{in.value_dim, 0, false};
    const int column = kv_head * in.value_dim;
    HeadPairs head = load_head<kPairs>(value, in.v + token * in.v_stride + column);
    if (in.norms_values) normalise<kPairs>(value, head, nullptr, in.eps);
    if constexpr (CacheType<Stored>::kPacksValues) {
      __shared__ float scratch[kRopeThreads / kWave][kMaxHeadDim];
      store_packed(value, head, out.v_cache + row * in.value_dim / kPacked<uint32_t>,
                   out.v_scale + row, scratch[wave_id()]);
    } else {
      store_cached(value, head, out.v_cache + row * in.value_dim, out.v_scale + row);
    }
  }
}

}  // namespace rf

#define RF_ROPE_STORE_F16(name, max_head_dim)                                                \
  extern "C" __global__ __launch_bounds__(rf::kRopeThreads) void name(                       \
      const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, \
      const float* __restrict__ q_norm, const float* __restrict__ k_norm,                    \
      const float* __restrict__ cosine, const float* __restrict__ sine,                      \
      const float* __restrict__ q_gains, const int32_t* __restrict__ positions,              \
      const int64_t* __restrict__ slots, rf::half* __restrict__ q_out,                       \
      rf::half* __restrict__ k_cache, rf::half* __restrict__ v_cache, int64_t q_stride,      \
      int64_t k_stride, int64_t v_stride, int32_t heads, int32_t kv_heads, int32_t key_dim,  \
      int32_t value_dim, int32_t rotary_dim, int32_t neox, int32_t rotates_first,            \
      int32_t norms_values, float eps) {                                                     \
    rf::rope_store<rf::half, max_head_dim>({q,                                               \
                                            k,                                               \
                                            v,                                               \
                                            q_norm,                                          \
                                            k_norm,                                          \
                                            cosine,                                          \
                                            sine,                                            \
                                            q_gains,                                         \
                                            positions,                                       \
                                            slots,                                           \
                                            q_stride,                                        \
                                            k_stride,                                        \
                                            v_stride,                                        \
                                            heads,                                           \
                                            kv_heads,                                        \
                                            {key_dim, rotary_dim, neox != 0},                \
                                            value_dim,                                       \
                                            rotates_first != 0,                              \
                                            norms_values != 0,                               \
                                            eps},                                            \
                                           {q_out, k_cache, v_cache, nullptr, nullptr});     \
  }

#define RF_ROPE_STORE_SCALED(name, Stored, max_head_dim)                                       \
  extern "C" __global__ __launch_bounds__(rf::kRopeThreads) void name(                         \
      const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,   \
      const float* __restrict__ q_norm, const float* __restrict__ k_norm,                      \
      const float* __restrict__ cosine, const float* __restrict__ sine,                        \
      const float* __restrict__ q_gains, const int32_t* __restrict__ positions,                \
      const int64_t* __restrict__ slots, rf::half* __restrict__ q_out,                         \
      rf::CacheType<Stored>::Key* __restrict__ k_cache,                                        \
      rf::CacheType<Stored>::Value* __restrict__ v_cache, float* __restrict__ k_scale,         \
      float* __restrict__ v_scale, int64_t q_stride, int64_t k_stride, int64_t v_stride,       \
      int32_t heads, int32_t kv_heads, int32_t key_dim, int32_t value_dim, int32_t rotary_dim, \
      int32_t neox, int32_t rotates_first, int32_t norms_values, float eps) {                  \
    rf::rope_store<Stored, max_head_dim>({q,                                                   \
                                          k,                                                   \
                                          v,                                                   \
                                          q_norm,                                              \
                                          k_norm,                                              \
                                          cosine,                                              \
                                          sine,                                                \
                                          q_gains,                                             \
                                          positions,                                           \
                                          slots,                                               \
                                          q_stride,                                            \
                                          k_stride,                                            \
                                          v_stride,                                            \
                                          heads,                                               \
                                          kv_heads,                                            \
                                          {key_dim, rotary_dim, neox != 0},                    \
                                          value_dim,                                           \
                                          rotates_first != 0,                                  \
                                          norms_values != 0,                                   \
                                          eps},                                                \
                                         {q_out, k_cache, v_cache, k_scale, v_scale});         \
  }

RF_ROPE_STORE_F16(rf_rope_store_f16, rf::kNarrowHeadDim)
RF_ROPE_STORE_SCALED(rf_rope_store_int8, int8_t, rf::kNarrowHeadDim)
RF_ROPE_STORE_SCALED(rf_rope_store_k8v4, rf::K8V4, rf::kNarrowHeadDim)
RF_ROPE_STORE_F16(rf_rope_store_wide_f16, rf::kWideHeadDim)
RF_ROPE_STORE_SCALED(rf_rope_store_wide_int8, int8_t, rf::kWideHeadDim)
