// As gemv.hip, for up to three matrices that are multiplied with the same activation, in one launch
// though their formats differ: query, key and value, of which files give one more bits.
//
// A block has a tile of one matrix, and branches to the code of its format. It computes what a
// block of gemv.hip does, so that results have the same bits.
#include "rf/gemv/deferred_norm.h"
#include "rf/gemv/gemv_formats.h"

namespace rf {

struct MixedMatrix {
  const uint8_t* weight;
  const float* bias;
  float* out;
  int out_features;
  int format;  // its number: the place of WeightFormat among those with kernels

  __device__ __forceinline__ int tiles() const {
    return Outputs{out_features, kNotGated}.stored_rows() / (kGroups * kGroupRows);
  }
};

template <int kRows, class X>
__device__ __forceinline__ void gemv_mixed(const MixedMatrix& first, const MixedMatrix& second,
                                           const MixedMatrix& third, X& x) {
  int tile = static_cast<int>(blockIdx.x);
  MixedMatrix own = first;
  if (tile >= first.tiles()) {
    tile -= first.tiles();
    own = second;
    if (tile >= second.tiles()) {
      tile -= second.tiles();
      own = third;
    }
  }
  const Outputs outputs{own.out_features, kNotGated};
  float sums[kRows][kGroups] = {};
  gemv_sums_of(own.format, own.weight, x, outputs, tile, sums);
  if constexpr (kRows == 1) let_next_begin();
  gemv_finish(sums, x, outputs, tile, {own.bias, own.out, nullptr});
}

}  // namespace rf

// first_weight and so on: up to three matrices as rf_gemv_<format>_r<rows> takes them, with their
// biases and results; those of out_features 0 are absent, and the last. q, scale: the activation.
// Grid: the stored rows of all of them / 16, block 64 to 256.
#define RF_GEMV_MIXED(kRows)                                                                    \
  extern "C" __global__ __launch_bounds__(rf::kGemvThreads) void RF_OF_GROUP(                   \
      rf_gemv_mixed_r##kRows)(                                                                  \
      const uint8_t* RF_EARLY first_weight, const float* __restrict__ first_bias,               \
      float* first_out, int first_out_features, int first_format,                               \
      const uint8_t* RF_EARLY second_weight, const float* __restrict__ second_bias,             \
      float* second_out, int second_out_features, int second_format,                            \
      const uint8_t* RF_EARLY third_weight, const float* __restrict__ third_bias,               \
      float* third_out, int third_out_features, int third_format, const int8_t* __restrict__ q, \
      const rf::ActScale* __restrict__ scale, int rows, int slices, int quant_blocks) {         \
    const rf::Activations x{q, scale, rows, slices, quant_blocks};                              \
    rf::gemv_mixed<rf::kSummedRows<kRows>>(                                                     \
        {first_weight, first_bias, first_out, first_out_features, first_format},                \
        {second_weight, second_bias, second_out, second_out_features, second_format},           \
        {third_weight, third_bias, third_out, third_out_features, third_format}, x);            \
  }
RF_GEMV_MIXED(1)
RF_GEMV_MIXED(2)
RF_GEMV_MIXED(4)
#if RF_IS_FIRST_GROUP  // see gemv_formats.h
RF_GEMV_MIXED(8)
#endif

// The same for one row, of one slice, whose norm was left for this launch. squares, eps: see
// deferred_norm.h.
extern "C" __global__ __launch_bounds__(rf::kGemvThreads) void RF_OF_GROUP(rf_gemv_deferred_mixed)(
    const uint8_t* RF_EARLY first_weight, const float* __restrict__ first_bias, float* first_out,
    int first_out_features, int first_format, const uint8_t* RF_EARLY second_weight,
    const float* __restrict__ second_bias, float* second_out, int second_out_features,
    int second_format, const uint8_t* RF_EARLY third_weight, const float* __restrict__ third_bias,
    float* third_out, int third_out_features, int third_format, const int8_t* __restrict__ q,
    const rf::ActScale* __restrict__ scale, int quant_blocks, const float* __restrict__ squares,
    float eps) {
  rf::NormedActivations x{{q, scale, 1, 1, quant_blocks}, squares, eps};
  rf::gemv_mixed<1>({first_weight, first_bias, first_out, first_out_features, first_format},
                    {second_weight, second_bias, second_out, second_out_features, second_format},
                    {third_weight, third_bias, third_out, third_out_features, third_format}, x);
}
