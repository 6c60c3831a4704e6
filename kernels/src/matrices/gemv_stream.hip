// What gemv_mixed.hip, gemv_gated.hip and gemv_deferred.hip compute for one row where norms are
// left for later, with weights that come through LDS (gemv_stream.h): on Hopper GPUs.
#include "rf/experts/logit_sums.h"
#include "rf/gemv/deferred_norm.h"
#include "rf/gemv/gemv_deferred.h"
#include "rf/gemv/gemv_formats.h"
#include "rf/gemv/gemv_gated.h"
#include "rf/gemv/gemv_stream.h"

#if RF_STREAMS

namespace rf {

inline constexpr int kStreamWaves = kGemvThreads / kWave;
inline constexpr int kStreamBlocks = 3;  // that shall fit on a multiprocessor
// LDS of a wave. Of the multiprocessors' 227 KiB, each kernel leaves as many blocks room as fit.
inline constexpr int kStreamBytes = 9216;           // gate and up: four steps of Q4_K
inline constexpr int kStreamMixedBytes = 7168;      // three steps of Q4_K, two of Q6_K
inline constexpr int kStreamDeferredBytes = 13824;  // six steps of Q4_K, four of Q6_K

template <class Format>
concept IsStreamed = requires { Streamed<Format>::kCount; };
// Gate and up of Q6_K would spill registers, and files have them in fewer bits.
template <class Format>
concept IsStreamedGated =
    IsStreamed<Format> && StreamSlots<kStreamBytes>::template kCount<Format> > 2;
template <class Format>
inline constexpr int kPiecesOf = 0;
template <IsStreamed Format>
inline constexpr int kPiecesOf<Format> = Streamed<Format>::kCount;

// What the waves of a block found for the tiles of a unit, for two of them.
template <int kTiles>
struct StreamParts {
  float sums[2][kTiles][kStreamWaves][1][kGroups][kGroupRows];

  __device__ __forceinline__ float total(int number, int tile, int j, int row, int waves) const {
    const auto& own = sums[number % 2][tile];
    float sum = own[0][0][j][row];
    for (int wave = 1; wave < waves; ++wave) sum += own[wave][0][j][row];
    return sum;
  }
};

struct StreamMatrix {
  const uint8_t* weight;
  const float* bias;
  float* out;
  int out_features;
  int format;

  __device__ __forceinline__ int tiles() const {
    return Outputs{out_features, kNotGated}.stored_rows() / (kGroups * kGroupRows);
  }
  // Of a tile, to divide blocks by.
  __device__ __forceinline__ int pieces() const {
    int found = 0;
#define RF_CASE(number, Format) \
  case number: found = kPiecesOf<Format>; break;
    switch (format) { RF_FORMAT_NUMBERS(RF_CASE) }
#undef RF_CASE
    return found;
  }
};

template <class Format, int kBytes, class X>
__device__ __forceinline__ void stream_tiles(const StreamMatrix& own, X& x, const Units& units,
                                             StreamSlots<kBytes>* lds, StreamParts<1>& parts) {
  const Outputs outputs{own.out_features, kNotGated};
  const int waves = static_cast<int>(blockDim.x) / kWave;
  stream_units<Format, 1, 1>(
      own.weight, x, outputs, units, lds, [&] { x.wait(); },
      [&](int number, int tile, int wave, const float (&sums)[1][kGroups]) {
        store_sums(sums, x, parts.sums[number % 2][tile][wave]);
      },
      [&](int unit, int number) {
        const int i = static_cast<int>(threadIdx.x), j = i / kGroupRows, row = i % kGroupRows;
        if (j >= kGroups) return;
        const int column = GemvTile<1>(unit).row(j);
        if (column >= own.out_features) return;
        const Result result{own.bias, own.out, nullptr};
        result.store(0, column, own.out_features, parts.total(number, 0, j, row, waves));
      });
}

// Blocks are divided among matrices as their bytes are.
template <int kBytes, class X>
__device__ __forceinline__ void stream_mixed(const StreamMatrix& first, const StreamMatrix& second,
                                             const StreamMatrix& third, X& x,
                                             StreamSlots<kBytes>* lds) {
  __shared__ StreamParts<1> parts;
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const auto pieces_of = [](const StreamMatrix& matrix) {
    return static_cast<uint32_t>(matrix.tiles()) * static_cast<uint32_t>(matrix.pieces());
  };
  const uint32_t of_first = pieces_of(first), of_second = pieces_of(second);
  const uint32_t of_third = pieces_of(third), of_all = of_first + of_second + of_third;
  const auto share = [&](uint32_t own) {
    return max(static_cast<int>(gridDim.x * own / of_all), 1);
  };
  const int others = (of_second ? 1 : 0) + (of_third ? 1 : 0);
  const int end = min(share(of_first), blocks - others);
  const int more = of_second ? min(share(of_second), blocks - end - (of_third ? 1 : 0)) : 0;
  const int next_end = of_third ? end + more : blocks;
  StreamMatrix own = first;
  Units units{block, of_second ? end : blocks, 0};
  if (of_second && block >= end) {
    own = second;
    units = {block - end, next_end - end, 0};
    if (block >= next_end) {
      own = third;
      units = {block - next_end, blocks - next_end, 0};
    }
  }
  units.end = own.tiles();
#define RF_CASE(number, Format)                                                        \
  case number:                                                                         \
    if constexpr (IsStreamed<Format>) stream_tiles<Format>(own, x, units, lds, parts); \
    break;
  switch (own.format) { RF_FORMAT_NUMBERS(RF_CASE) }
#undef RF_CASE
}

template <class Format, int kBytes, class X>
__device__ __forceinline__ void stream_gated(const uint8_t* weight, X& x, const Outputs& outputs,
                                             const ActOutput& out, StreamSlots<kBytes>* lds,
                                             StreamParts<kGatedTiles>& parts,
                                             float (&columns)[kActBlock]) {
  const Units units{static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                    outputs.out_features / kActBlock};
  const int waves = static_cast<int>(blockDim.x) / kWave;
  stream_units<Format, kGatedTiles, 1>(
      weight, x, outputs, units, lds, [&] { x.wait(); },
      [&](int number, int tile, int wave, const float (&sums)[1][kGroups]) {
        store_sums(sums, x, parts.sums[number % 2][tile][wave]);
      },
      [&](int unit, int number) {
        if (wave_id() != 0) return;
        const int lane = lane_id(), tile = lane / kGroupRows, row = lane % kGroupRows;
        columns[lane] = gated(parts.total(number, tile, 0, row, waves),
                              parts.total(number, tile, 1, row, waves), outputs.activation);
        wave_sync();
        const bool inside = lane < kActLanes;
        const int four = lane % kActLanes * 4;
        const int64_t element = static_cast<int64_t>(unit) * kActBlock + four;
        const auto values = inside ? Vec<float, 4>(load16(columns + four)) : Vec<float, 4>{};
        wave_sync();
        out.store(element, values, inside);
      });
}

template <class Format, int kBytes>
__device__ __forceinline__ void stream_deferred(const uint8_t* weight, const Activations& x,
                                                const Outputs& outputs, DeferredColumns& columns,
                                                DeferredParts<>& parts, StreamSlots<kBytes>* lds) {
  const int unit = static_cast<int>(blockIdx.x);
  stream_units<Format, kDeferredTiles, 1>(
      weight, x, outputs, {unit, 1, unit + 1}, lds,
      [&] {
        x.wait();
        columns.begin();
      },
      [&](int, int tile, int wave, const float (&sums)[1][kGroups]) {
        store_sums(sums, x, parts.sums[tile][wave]);
      },
      [](int, int) {});
}

// Of all formats.
template <class Router>
__device__ __forceinline__ void gemv_deferred_stream(const uint8_t* weight, const Activations& x,
                                                     const float* bias, int out_features,
                                                     int format, DeferredColumns columns,
                                                     Router router) {
  using Slots = StreamSlots<kStreamDeferredBytes>;
  struct Lds {
    Slots of_waves[kStreamWaves];
  };
  RF_LARGE_LDS(Lds, lds);
  __shared__ DeferredParts<> parts;
  const Outputs outputs{out_features, kNotGated};
  const int block = static_cast<int>(blockIdx.x);
  router.fetch(block);
#define RF_CASE(number, Format)                                                   \
  case number:                                                                    \
    if constexpr (IsStreamed<Format>) {                                           \
      stream_deferred<Format>(weight, x, outputs, columns, parts, lds->of_waves); \
    }                                                                             \
    break;
  switch (format) { RF_FORMAT_NUMBERS(RF_CASE) }
#undef RF_CASE
  router.ask(block);
  columns.finish(parts, static_cast<int>(blockDim.x) / kWave,
                 [&](int column, float sum) { return bias ? sum + bias[column] : sum; });
  router.add(parts.weighted, block);
}

}  // namespace rf

#else
// Other targets have none of these kernels; their arguments are read there, too.
#pragma clang diagnostic ignored "-Wunused-parameter"
#endif  // RF_STREAMS

// As rf_gemv_deferred_mixed, of the formats that have pieces (formats.h). Grid: at least as many
// blocks as there are matrices.
extern "C" __global__
__launch_bounds__(rf::kGemvThreads, rf::kStreamBlocks) void rf_gemv_deferred_mixed_stream(
    const uint8_t* __restrict__ first_weight, const float* __restrict__ first_bias,
    float* first_out, int first_out_features, int first_format,
    const uint8_t* __restrict__ second_weight, const float* __restrict__ second_bias,
    float* second_out, int second_out_features, int second_format,
    const uint8_t* __restrict__ third_weight, const float* __restrict__ third_bias,
    float* third_out, int third_out_features, int third_format, const int8_t* __restrict__ q,
    const rf::ActScale* __restrict__ scale, int quant_blocks, const float* __restrict__ squares,
    float eps) {
#if RF_STREAMS
  using namespace rf;
  using Slots = StreamSlots<kStreamMixedBytes>;
  struct Lds {
    Slots of_waves[kStreamWaves];
  };
  RF_LARGE_LDS(Lds, lds);
  NormedActivations x{{q, scale, 1, 1, quant_blocks}, squares, eps};
  stream_mixed({first_weight, first_bias, first_out, first_out_features, first_format},
               {second_weight, second_bias, second_out, second_out_features, second_format},
               {third_weight, third_bias, third_out, third_out_features, third_format}, x,
               lds->of_waves);
#endif
}

// As rf_gemv_deferred_gated. Grid: any.
extern "C" __global__
__launch_bounds__(rf::kGemvThreads, rf::kStreamBlocks) void rf_gemv_deferred_gated_stream(
    const uint8_t* __restrict__ weight, const int8_t* __restrict__ q,
    const rf::ActScale* __restrict__ scale, float* out_f32, rf::half* out_f16, int8_t* out_q,
    rf::ActScale* out_q_scale, int32_t out_q_lo_offset, int out_features, int quant_blocks,
    int activation, int format, const float* __restrict__ squares, float eps) {
#if RF_STREAMS
  using namespace rf;
  using Slots = StreamSlots<kStreamBytes>;
  struct Lds {
    Slots of_waves[kStreamWaves];
  };
  RF_LARGE_LDS(Lds, lds);
  __shared__ StreamParts<kGatedTiles> parts;
  alignas(16) __shared__ float columns[kActBlock];
  NormedActivations x{{q, scale, 1, 1, quant_blocks}, squares, eps};
  const Outputs outputs{out_features, activation};
  const ActOutput out{out_f32, out_f16, out_q, out_q_scale, out_q_lo_offset};
#define RF_CASE(number, Format)                                                     \
  case number:                                                                      \
    if constexpr (IsStreamedGated<Format>) {                                        \
      stream_gated<Format>(weight, x, outputs, out, lds->of_waves, parts, columns); \
    }                                                                               \
    break;
  switch (format) { RF_FORMAT_NUMBERS(RF_CASE) }
#undef RF_CASE
#endif
}

// As rf_gemv_deferred.
extern "C" __global__ __launch_bounds__(rf::kGemvThreads, 2) void rf_gemv_deferred_stream(
    const uint8_t* __restrict__ weight, const int8_t* __restrict__ q,
    const rf::ActScale* __restrict__ scale, const float* __restrict__ bias, int out_features,
    int quant_blocks, int format, float* residual, const float* __restrict__ norm_weight,
    int8_t* normed_q, rf::ActScale* normed_q_scale, float* squares) {
#if RF_STREAMS
  rf::gemv_deferred_stream(weight, {q, scale, 1, 1, quant_blocks}, bias, out_features, format,
                           {residual, norm_weight, normed_q, normed_q_scale, squares},
                           rf::NoRouter{});
#endif
}

// As rf_gemv_deferred_route.
extern "C" __global__ __launch_bounds__(rf::kGemvThreads, 2) void rf_gemv_deferred_route_stream(
    const uint8_t* __restrict__ weight, const int8_t* __restrict__ q,
    const rf::ActScale* __restrict__ scale, const float* __restrict__ bias, int out_features,
    int quant_blocks, int format, float* residual, const float* __restrict__ norm_weight,
    int8_t* normed_q, rf::ActScale* normed_q_scale, float* squares,
    const float* __restrict__ router, int64_t* logit_sums, int logits) {
#if RF_STREAMS
  rf::gemv_deferred_stream(weight, {q, scale, 1, 1, quant_blocks}, bias, out_features, format,
                           {residual, norm_weight, normed_q, normed_q_scale, squares},
                           rf::RouterColumns{router, logit_sums, logits, out_features});
#endif
}
