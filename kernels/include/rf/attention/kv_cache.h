// Where keys and values lie in the paged cache.
//
// Each layer has one array for K and one for V, [num_blocks, kv_heads, kBlockTokens, key_dim] and
// [..., value_dim]: what one head of one block holds is contiguous (8 KiB for 128 halves), so a
// wave reads it in whole cache lines. 32 tokens a block halve the block tables and the host's
// bookkeeping against 16, and no kernel's step over the tokens straddles two blocks.
//
// In latent attention, values are the last value_dim elements of K's rows, and there is no V.
//
// An int8 cache adds one float32 scale for each token and head: [num_blocks, kv_heads,
// kBlockTokens], with value = scale * int8. A cache of type K8V4
// has such keys, and values of four bits with a scale of the same kind: packed_values.h.
#pragma once

#include "rf/platform.h"

namespace rf {

inline constexpr int kBlockTokens = 32;
inline constexpr int kNarrowHeadDim = 256;  // larger heads are stored by the kernels for wide ones

// Index of the row of `head` for the token at `offset` in `block`: times key_dim it is the element
// in K, times value_dim that in V, as it is the element in the scales.
__device__ __forceinline__ int64_t cache_row(int64_t block, int offset, int head, int kv_heads) {
  return (block * kv_heads + head) * kBlockTokens + offset;
}

struct K8V4 {};

// What a type of cache, half, int8_t or K8V4, stores as a key's and a value's elements. A word is
// kPacked of them.
template <class Stored>
struct CacheType {
  using Key = Stored;
  using Value = Stored;
  static constexpr bool kHasScales = sizeof(Stored) == 1;
  static constexpr bool kPacksValues = false;
};
template <>
struct CacheType<K8V4> {
  using Key = int8_t;
  using Value = uint32_t;
  static constexpr bool kHasScales = true;
  static constexpr bool kPacksValues = true;
};
template <class Stored>
struct CacheType<const Stored> : CacheType<Stored> {
  using Key = const typename CacheType<Stored>::Key;
  using Value = const typename CacheType<Stored>::Value;
};

template <class Element>
inline constexpr int kPacked = sizeof(Element) == 4 ? 8 : 1;

}  // namespace rf
