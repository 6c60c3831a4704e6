// The logits of many tokens: what rf_route_logits makes, on matrix instructions.
#include "rf/experts/route_gemm.h"

// x: f32 [tokens, features], router: f32 [experts, features], features a multiple of 32. logits:
// f32 [splits, tokens, experts], sums of parts of the features that rf_route_choose adds up; no
// more splits than multiples of 32. Grid: (ceil(experts / 64), or one less where that is for one
// expert alone, ceil(tokens / 64), splits), block 256.
extern "C" __global__ __launch_bounds__(rf::RouteGemm::kThreads) void rf_route_gemm(
    const float* __restrict__ x, const float* __restrict__ router, float* logits, int tokens,
    int experts, int features) {
  rf::RouteGemm::run(x, router, logits, tokens, experts, features);
}
