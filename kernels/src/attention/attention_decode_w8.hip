// rf_attention_decode_* in blocks of twice as many waves, each of which takes half as many steps:
// for launches whose blocks are no more than multiprocessors. One block runs on each, and its waves
// have as many registers as there are.
#define RF_DECODE_WAVES 8

#include "rf/decode/attention_decode.h"

#define RF_MORE_PARAMETERS
#define RF_MORE_ARGUMENTS
#define RF_NORMS (RF_IS_COMMON ? rf::HeadNorms::kOfHeads : rf::HeadNorms::kBeforeRope)
#define RF_FUNCTION(Stored, group) \
  rf::attention_decode<RF_NORMS, Stored, RF_KEY_DIM, RF_VALUE_DIM, group, RF_VALUES_IN_KEYS>
#define RF_DECODE(kind, Stored, group, has_scales) \
  RF_ATTENTION_DECODE(RF_NAME(decode_w8, kind, RF_HEAD, group), 1, Stored, group, has_scales)

#define RF_F16(group) RF_DECODE(f16, rf::half, group, no)
#define RF_INT8(group) RF_DECODE(int8, int8_t, group, yes)
RF_GROUPS(RF_F16)
RF_GROUPS(RF_INT8)
