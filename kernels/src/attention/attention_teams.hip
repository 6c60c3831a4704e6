// Decode attention with teams: sequences whose contexts begin with the same blocks of the cache,
// which are read once for a team and not once for each of its members.
//
// The front that a team shares has splits of its own, and so has the rest of each sequence. A
// thread block of a team's first member does a split of the front for all members; the blocks of
// the others end there. Each wave has the queries of some members, and all read the tokens from
// LDS. Where one wave has room for all queries, as of a sequence alone behind its front, the waves
// take tokens in turn. What splits have found is merged as in attention_decode.hip.
#include "rf/decode/kernel.h"
#include "rf/decode/team.h"

namespace rf {

template <class Stored, int kKeyDim, int kValueDim>
struct TeamShape {
  using Wave = typename DecodeWave<Stored, kKeyDim, kValueDim, kTeamRows, false>::Type;
  using Tile = TeamTile<Stored, kKeyDim, kValueDim, Wave::kPad, kDecodeThreads>;
  // One after the other.
  union Scratch {
    half queries[kDecodeWaves][kTeamRows][kKeyDim];
    Tile tile;
    float output[kDecodeWaves][kTeamRows][kValueDim];
  };
};

// Grid: (kv_heads * ceil(group / kGroup), splits, sequences), kDecodeWaves waves a block. Those of
// a front and of the rest are one split more than of the whole.
template <class Stored, int kKeyDim, int kValueDim, int kGroup>
__device__ __forceinline__ void attention_decode_teams(const DecodeInput& in,
                                                       const Cache<Stored>& cache,
                                                       const DecodeOutput& out,
                                                       const Teams& teams) {
  constexpr HeadNorms kNorms = HeadNorms::kBeforeRope;  // no scalar registers are left for others
  using Shape = TeamShape<Stored, kKeyDim, kValueDim>;
  using Tile = typename Shape::Tile;
  const int first = static_cast<int>(blockIdx.z);
  const int sequence = in.sequences[first];
  const int context = in.context_len[sequence];
  const int shared = teams.shared(first);
  const SplitRange range = split_range(context, 0, in.split_tokens, blockIdx.y, shared);
  if constexpr (kBeginsEarly) {
    wait_for_previous(in.q, in.fresh.q, in.fresh.k, in.fresh.v);
    let_next_begin_if_few();
  }
  if (range.begin >= context) return;
  const bool is_front = range.begin < shared;
  const int members = is_front ? teams.members(first) : 1;
  if (members == 0) return;
  const auto decode_at = [&](int member) { return is_front ? teams.member(first, member) : first; };

  const int group = in.heads / cache.kv_heads;
  const int tiles = (group + kGroup - 1) / kGroup;
  const int kv_head = static_cast<int>(blockIdx.x) / tiles;
  const int tile = static_cast<int>(blockIdx.x) % tiles;
  const int first_head = kv_head * group + tile * kGroup;
  const int heads = min(kGroup, group - tile * kGroup);
  const auto query_row = [&](int decode) {
    return static_cast<int64_t>(in.query_start[in.sequences[decode]]) * in.heads + first_head;
  };

  const int per_member = min(group, kGroup);  // rows
  const int per_wave = kTeamRows / per_member;
  const int waves = members <= per_wave ? kDecodeWaves : 1;  // that take the tokens of a row
  const int wave = uniform(wave_id());
  alignas(16) __shared__ typename Shape::Scratch scratch;
  const int32_t* blocks = cache.blocks_of(sequence);
  if (in.fresh.q && in.fresh.k && range.end == context) {
    const int last = context - 1;
    const int64_t row =
        cache_row(blocks[last / kBlockTokens], last % kBlockTokens, kv_head, cache.kv_heads);
    if (tiles > 1) stored_by_each_block<Stored, kKeyDim, kValueDim>(cache, row);
    if (wave < 2) {
      store_new_token<kNorms, Stored, kKeyDim, kValueDim>(
          in.fresh, cache, in.query_start[sequence], last, kv_head, row, wave == 1, 1.0f, nullptr);
    }
    __syncthreads();
  }

  // Where results go waits in LDS: CDNA has no scalar registers for it in the meantime.
  __shared__ DecodeOutput results;
  if (threadIdx.x == 0) results = out;
  // Of the rows of each wave, the decode and which of its heads; -1 of rows without any.
  __shared__ int32_t decode_of[kDecodeWaves][kTeamRows];
  __shared__ int32_t head_of[kDecodeWaves][kTeamRows];
  const int first_member = waves == 1 ? wave * per_wave : 0;
  const bool is_busy = first_member < members;
  int member = first_member, head = 0;
#pragma unroll 1
  for (int row = 0; row < kTeamRows; ++row) {
    constexpr int kPairs = kPairsOfLane<kKeyDim>;
    const HeadShape key{kKeyDim, in.fresh.rotary_dim, in.fresh.neox};
    half* query = scratch.queries[wave][row];
    const bool valid = row < per_wave * per_member && member < members && head < heads;
    const int decode = valid ? decode_at(member) : -1;
    if (!valid) {
      store_head(key, HeadPairs<kPairs>{}, query);
    } else if (in.fresh.q) {
      const int own = in.sequences[decode];
      const float* from =
          in.fresh.q + in.query_start[own] * in.fresh.q_stride + (first_head + head) * kKeyDim;
      const int position = in.context_len[own] - 1;
      store_head(
          key,
          rotated_head<kNorms, kKeyDim, kPairs>(in.fresh, position, from, in.fresh.q_norm, 1.0f),
          query);
    } else {
      const half* from = in.q + query_row(decode) * kKeyDim + head * kKeyDim;
      for (int i = 2 * lane_id(); i < kKeyDim; i += 2 * kWave) {
        *reinterpret_cast<Vec<half, 2>*>(query + i) =
            *reinterpret_cast<const Vec<half, 2>*>(from + i);
      }
    }
    if (lane_id() == 0) {
      decode_of[wave][row] = decode;
      head_of[wave][row] = head;
    }
    if (++head == per_member) {
      head = 0;
      ++member;
    }
  }
  wave_sync();
  typename Shape::Wave own;
  own.load_queries(scratch.queries[wave][0], kTeamRows);

  typename Tile::Own next;
  const auto load = [&](int base) {
    const int64_t row = cache_row(blocks[base / kBlockTokens], 0, kv_head, cache.kv_heads);
    Tile::load(cache, row, min(kBlockTokens, range.end - base), next);
  };
  load(range.begin);
  for (int base = range.begin; base < range.end; base += kBlockTokens) {
    const BlockWalk<Shape::Wave::kPad> walk{min(kBlockTokens, range.end - base)};
    __syncthreads();
    scratch.tile.store(walk.end, next);
    __syncthreads();
    // The next block travels while this one is read.
    if (base + kBlockTokens < range.end) load(base + kBlockTokens);
    if (is_busy) {
      own.attend(scratch.tile.cache(), walk, waves == 1 ? 0 : wave, waves, in.rule);
    }
  }
  own.finish();
  __syncthreads();

  __shared__ float highest[kDecodeWaves][kTeamRows];
  __shared__ float total[kDecodeWaves][kTeamRows];
  own.store(scratch.output[wave], highest[wave], total[wave]);
  __syncthreads();
  using Splits = SplitResults<kValueDim>;
  const auto splits_at = [&](int decode) {
    const int64_t row =
        (static_cast<int64_t>(decode) * in.heads + first_head) * static_cast<int>(gridDim.y);
    return Splits{results.partial + row * kValueDim,
                  reinterpret_cast<MaxSum*>(results.partial_ml) + row, static_cast<int>(gridDim.y)};
  };
  const int elements = (waves == 1 ? kDecodeWaves : 1) * kTeamRows * kValueDim;
#pragma unroll 1
  for (int from = 0; from < elements; from += 4 * kDecodeThreads) {
    const int i = from + 4 * static_cast<int>(threadIdx.x);
    const int row = min(i, elements - 1) / kValueDim % kTeamRows;
    const int begin = min(i, elements - 1) / kValueDim / kTeamRows;
    const int column = i % kValueDim;
    MaxSum softmax{highest[begin][row], 0.0f};
    for (int w = begin + 1; w < begin + waves; ++w) {
      softmax.highest = max(softmax.highest, highest[w][row]);
    }
    Vec<float, 4> sum{};
    for (int w = begin; w < begin + waves; ++w) {
      const float factor = exp2(highest[w][row] - softmax.highest);
      softmax.total += factor * total[w][row];
      sum += factor * load16(&scratch.output[w][row][column]);
    }
    const int decode = decode_of[begin][row];
    if (i < elements && decode >= 0) {
      splits_at(decode).store(head_of[begin][row], blockIdx.y, column, sum, softmax);
    }
  }
  if (!out.arrived) return;

  __shared__ bool is_last[kDecodeWaves * kTeamRows];
  const auto used = [&](int decode) {
    return splits_of(in.context_len[in.sequences[decode]], 0, in.split_tokens, shared);
  };
  are_last_blocks(
      members,
      [&](int i) { return out.arrived + decode_at(i) * static_cast<int>(gridDim.x) + blockIdx.x; },
      [&](int i) { return used(decode_at(i)); }, is_last);
  __shared__ MaxSum merged[kGroup];
  const float* sinks = in.sinks ? in.sinks + first_head : nullptr;
#pragma unroll 1
  for (int i = 0; i < members; ++i) {
    if (uniform(static_cast<int>(is_last[i])) == 0) continue;
    const int decode = decode_at(i);
    merge_splits<kDecodeThreads, kGroup>(splits_at(decode), used(decode), heads, sinks,
                                         query_row(decode) * kValueDim, results.attended, merged);
    __syncthreads();
  }
}

}  // namespace rf

#define RF_MORE_PARAMETERS const int32_t* __restrict__ teams,
#define RF_MORE_ARGUMENTS \
  , { teams }
#define RF_FUNCTION(Stored, group) \
  rf::attention_decode_teams<Stored, RF_KEY_DIM, RF_VALUE_DIM, group>
#define RF_TEAMS(kind, Stored, group, has_scales)                  \
  RF_ATTENTION_DECODE(RF_NAME(decode_teams, kind, RF_HEAD, group), \
                      RF_BLOCKS(Stored, rf::kTeamRows), Stored, group, has_scales)

#define RF_F16(group) RF_TEAMS(f16, rf::half, group, no)
#define RF_INT8(group) RF_TEAMS(int8, int8_t, group, yes)
RF_GROUPS(RF_F16)
RF_GROUPS(RF_INT8)
