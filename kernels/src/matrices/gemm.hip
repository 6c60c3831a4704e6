// y = x W^T for many rows of x: the linear layers of prefill, and of decode steps of many users.
//
// Bound by the matrix instructions once there are some hundred rows. A block computes kTileRows x
// 128 of y. Weights are dequantised to halves when they enter LDS, so that each block does it once
// for all of its rows. LDS holds two tiles of K or more: while the waves multiply one, the block
// brings the next. Up to 32 rows leave quantised weights out of LDS where they can (gemm_direct.h),
// and groups of up to 64 do on Hopper GPUs (gemm_few_rows.h), where rows without groups have
// kernels of their own (gemm_few_rows.hip). Compiled once per format.
#include "rf/experts/grouped_rows.h"
#include "rf/gemm/gemm_block.h"
#include "rf/gemm/gemm_direct.h"
#include "rf/gemm/gemm_few_rows.h"
#include "rf/gemm/gemm_tiles.h"

namespace rf {

inline constexpr int kGemmWaves = Mma::kWideTiles || kWave == 64 ? 4 : 8;
inline constexpr int kGemmThreads = kGemmWaves * kWave;

// The waves of a block share the weights of a step through LDS.
template <class Format, int kTileRows>
class Gemm {
 public:
  // Returns false if it is to be called again, with the factor 1.
  static __device__ __forceinline__ bool run(const GemmArguments& arguments, float factor) {
    __shared__ Lds lds;
    const auto x_tile = [&](int stage) { return HalfTile{lds.tiles.x[stage]}; };
    const auto w_tile = [&](int stage) { return HalfTile{lds.tiles.w[stage]}; };

    const int stored_rows = arguments.outputs.stored_rows();
    const int first_column = blockIdx.y * kTileColumns;
    const int begin = blockIdx.z * arguments.split_quant_blocks;
    const int end = min(begin + arguments.split_quant_blocks, arguments.quant_blocks);

    const int w_row = threadIdx.x % kTileColumns;
    const int w_stored_row = min(first_column + w_row, stored_rows - 1);
    const Weights weights(Planes(arguments.weight, stored_rows, w_stored_row),
                          arguments.quant_blocks, uniform(threadIdx.x / kTileColumns));
    ActivationTile<kTileRows, kGemmThreads> x(arguments.x, arguments.sources, arguments.first_row,
                                              arguments.rows, arguments.quant_blocks);

#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
      if (begin + stage < end) x.start(begin + stage, x_tile(stage));
      async_commit();
    }
    typename Weights::Held held[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) held[i] = weights.load(begin + i * kQuantBlocks);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) weights.put(held[0], 0, begin, i, w_tile(0), w_row);
    if constexpr (kQuantBlocks == 1) held[0] = weights.load(begin + kAhead);
    x.template finish<kStages - 2>(x_tile(0), factor);
    lds_barrier();

    Accumulators sums{};
    int stage = 0;
    // Several steps at a time, so that buffers and quant blocks of a chunk are known to the
    // compiler.
    for (int quant_block = begin; quant_block < end; quant_block += kSteps) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int now = quant_block + step;
        if (step > 0 && now >= end) break;
        const int later = now + kStages - 1;
        if (later < end) x.start(later, x_tile(stage == 0 ? kStages - 1 : stage - 1));
        async_commit();

        // What is written for a step after the last is read by nobody.
        auto& next = held[(step + 1) / kQuantBlocks % kAhead];
        const int u = (step + 1) % kQuantBlocks;
        multiply(sums, x_tile(stage), w_tile(step % 2),
                 [&](int i) { weights.put(next, u, now + 1, i, w_tile((step + 1) % 2), w_row); });
        stage = stage == kStages - 1 ? 0 : stage + 1;
        x.template finish<kStages - 2>(x_tile(stage), factor);
        if (u == kQuantBlocks - 1) next = weights.load(now + 2 + (kAhead - 1) * kQuantBlocks);
        lds_barrier();
      }
    }
    if (!Block::are_final(sums, factor, lds.votes)) return false;
    Block::store(sums, factor, lds.staged, arguments, first_column);
    return true;
  }

 private:
  using Weights = WeightRow<Format, kGemmThreads / kTileColumns>;
  using Block = GemmBlock<kTileRows, kGemmWaves, Mma::kWideTiles && kTileRows >= 64 ? 2 : 4>;
  using Accumulators = Block::Accumulators;

  static constexpr int kQuantBlocks = Weights::kQuantBlocks;
  static constexpr int kPieces = kTileChunks * kTileColumns / kGemmThreads;  // of a thread
  // Copies that need no registers begin several steps ahead, and so do loads of weights that need
  // few. They wait for memory, which takes longer than a step.
  static constexpr bool kHasCodebook = requires { typename Format::Codebook; };  // which is in LDS
  static constexpr int kStages = !kHasAsyncCopy ? 2 : kHasCodebook ? 3 : 4;
  static constexpr int kAhead = kHasAsyncCopy && sizeof(typename Weights::Held) <= 64 ? 2 : 1;
  static constexpr int kSteps = 2 * kAhead;
  static_assert(kSteps % (kQuantBlocks * kAhead) == 0);

  union Lds {
    struct {
      U4 x[kStages][kTileRows * kTileChunks];
      U4 w[2][kTileColumns * kTileChunks];
    } tiles;
    Block::Staged staged;
    Block::Votes votes;
  };

  // Multiplies tiles, and calls put(i) for each of kPieces pieces of the next tile of weights:
  // where its weights have been there for long, between the products, else after them.
  template <class Put>
  static __device__ __forceinline__ void multiply(Accumulators& sums, HalfTile x, HalfTile w,
                                                  Put put) {
    // Without matrix instructions a step needs many registers: those of one step at a time.
    constexpr int kStepsAtOnce = Mma::kStepChunks == 1 ? 1 : kTileChunks;
#pragma unroll kStepsAtOnce
    for (int chunk = 0; chunk < kTileChunks; chunk += LdsMma::kStepChunks) {
      decltype(LdsMma::load_b(w, 0, 0)) b[Block::kColumnTiles];
#pragma unroll
      for (int j = 0; j < Block::kColumnTiles; ++j)
        b[j] = LdsMma::load_b(w, Block::wave_column() + 16 * j, chunk);
#pragma unroll
      for (int i = 0; i < Block::kRowTiles; ++i) {
        const auto a = LdsMma::load_a(x, Block::wave_row() + 16 * i, chunk);
#pragma unroll
        for (int j = 0; j < Block::kColumnTiles; ++j) LdsMma::multiply(sums[i][j], a, b[j]);
        if (kAhead > 1 && chunk == 0 && i < kPieces) put(i);
      }
    }
    constexpr int kPut = kAhead == 1 ? 0 : Block::kRowTiles < kPieces ? Block::kRowTiles : kPieces;
#pragma unroll
    for (int i = kPut; i < kPieces; ++i) put(i);
  }
};

template <class Format, int kTileRows>
inline constexpr bool kIsDirect = kTileRows == 32 && Mma::kDirectWaves > 0 && Quantised<Format>;

// Whether four waves together multiply: gemm_few_rows.h.
#if RF_WARPGROUPS
template <class Format, int kTileRows>
inline constexpr bool kUsesWarpgroups = kTileRows == 64 && Quantised<Format>;
#else
template <class Format, int kTileRows>
inline constexpr bool kUsesWarpgroups = false;
inline constexpr int kFewRowsWaves = 0, kFewRowsBlocks = 0;
#endif

template <class Format, int kTileRows>
inline constexpr int kThreadsFor = kWave * (kUsesWarpgroups<Format, kTileRows> ? kFewRowsWaves
                                            : kIsDirect<Format, kTileRows>     ? Mma::kDirectWaves
                                                                               : kGemmWaves);

// Blocks that a multiprocessor shall have registers for, on NVIDIA GPUs; 0: as the compiler likes.
template <class Format, int kTileRows>
constexpr int blocks_for() {
  if constexpr (kUsesWarpgroups<Format, kTileRows>) {
    return kFewRowsBlocks;
  } else if constexpr (kIsDirect<Format, kTileRows> && requires { Format::kDirectBlocks; }) {
    return Format::kDirectBlocks;
  }
  return 0;
}

template <class Format, int kTileRows>
__device__ __forceinline__ void gemm(const GemmArguments& arguments) {
  prepare<Format>();
#if RF_WARPGROUPS
  if constexpr (kUsesWarpgroups<Format, kTileRows>) {
    few_rows_gemm<Format>(arguments);
    return;
  }
#endif
  if constexpr (kIsDirect<Format, kTileRows>) {
    direct_gemm<Format>(arguments);
  } else {
    RF_WITH_RAISED((Gemm<Format, kTileRows>::run(arguments, factor)));
  }
}

// Whether what comes after begin_tile() waits for the kernel before, and not the kernel's
// beginning.
#if RF_WARPGROUPS
template <class Format, int kTileRows>
inline constexpr bool kWaits = kTileRows == 64 && Staged<Format>;
#else
template <class Format, int kTileRows>
inline constexpr bool kWaits = false;
#endif

// Makes the arguments those of the block's tile. Returns whether there is anything to do.
template <class Format, int kTileRows>
__device__ __forceinline__ bool begin_tile(GemmArguments& arguments, const Groups& groups) {
  arguments.first_row = blockIdx.x * kTileRows;
  if (!groups.tiles) return true;
  if constexpr (kWaits<Format, kTileRows>) wait_for_previous(groups.tiles, groups.experts.places);
  return begin_group(arguments, groups, blockIdx.x);
}

}  // namespace rf

#if RF_NVIDIA
#define RF_BOUNDS(Format, kTileRows) \
  __launch_bounds__((rf::kThreadsFor<Format, kTileRows>), (rf::blocks_for<Format, kTileRows>()))
#else
#define RF_BOUNDS(Format, kTileRows) __launch_bounds__((rf::kThreadsFor<Format, kTileRows>))
#endif

// weight: a matrix of weights.h. x: halves [rows, 32 * quant_blocks]. With partial null, writes out
// (f32) and out_half, those that are not null, [rows, out_features] = x @ weight.T, gated if
// `activation` says so (gate.h). bias [out_features], if not null, is added to the product; of a
// gated layer, to the gate, and up_bias to what it multiplies. Otherwise K is split into pieces of
// split_quant_blocks (a multiple of 8), and rf_gemm_sum adds up the pieces.
// Grid: (ceil(rows / tile rows), ceil(stored rows / 128), splits), block: the most threads that the
// kernel is compiled for.
// With `tiles` (groups.h), weight, places and expert_bytes are those of expert_matrices.h, and
// biases are [experts, out_features]. Rows are sorted by expert then, and multiplied from rows
// `sources` of x, or from their own if that is null. Grid: as many tiles in the place of those of
// rows; K whole.
#define RF_GEMM(name, Format, kTileRows)                                                     \
  extern "C" __global__ RF_BOUNDS(rf::Format, kTileRows) void rf_gemm_##name##_m##kTileRows( \
      const uint8_t* __restrict__ weight, const int64_t* __restrict__ places,                \
      const rf::half* __restrict__ x, const rf::GroupTile* __restrict__ tiles,               \
      const int32_t* __restrict__ sources, const float* __restrict__ bias,                   \
      const float* __restrict__ up_bias, float* out, rf::half* out_half, float* partial,     \
      int64_t expert_bytes, int rows, int out_features, int quant_blocks, int activation,    \
      int split_quant_blocks) {                                                              \
    rf::GemmArguments arguments{weight,                                                      \
                                x,                                                           \
                                sources,                                                     \
                                0,                                                           \
                                rows,                                                        \
                                quant_blocks,                                                \
                                {out_features, activation},                                  \
                                up_bias,                                                     \
                                {bias, out, out_half},                                       \
                                partial,                                                     \
                                split_quant_blocks};                                         \
    if (!rf::begin_tile<rf::Format, kTileRows>(arguments,                                    \
                                               {tiles, {weight, places, expert_bytes}}))     \
      return;                                                                                \
    rf::gemm<rf::Format, kTileRows>(arguments);                                              \
  }
#define RF_GEMM_OF(name, Format, ...) \
  RF_GEMM(name, Format, 32)           \
  RF_GEMM(name, Format, 64)           \
  RF_GEMM(name, Format, 128)
RF_FORMATS(RF_GEMM_OF)
