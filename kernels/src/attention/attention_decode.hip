// Attention of one new token a sequence over the paged cache, see rf/decode/attention_decode.h.
#include "rf/decode/attention_decode.h"

// RF_HEAD is the head size of this translation unit, RF_KEY_DIM and RF_VALUE_DIM its elements,
// RF_VALUES_IN_KEYS whether v_cache is k_cache, with values as the end of its rows, RF_IS_COMMON
// whether most models have it, and RF_GROUPS(X) is X(group) for each number of heads that a block
// may have. Larger heads have no scalar registers for norms behind rope.
#define RF_MORE_PARAMETERS
#define RF_MORE_ARGUMENTS
#define RF_NORMS (RF_IS_COMMON ? rf::HeadNorms::kOfHeads : rf::HeadNorms::kBeforeRope)
#define RF_FUNCTION(Stored, group) \
  rf::attention_decode<RF_NORMS, Stored, RF_KEY_DIM, RF_VALUE_DIM, group, RF_VALUES_IN_KEYS>
#define RF_DECODE(kind, Stored, group, has_scales)                                             \
  RF_ATTENTION_DECODE(RF_NAME(decode, kind, RF_HEAD, group), RF_BLOCKS(Stored, group), Stored, \
                      group, has_scales)

#define RF_F16(group) RF_DECODE(f16, rf::half, group, no)
#define RF_INT8(group) RF_DECODE(int8, int8_t, group, yes)
#define RF_K8V4(group) RF_DECODE(k8v4, rf::K8V4, group, yes)
RF_GROUPS(RF_F16)
RF_GROUPS(RF_INT8)
#if RF_IS_COMMON
RF_GROUPS(RF_K8V4)
#endif
