// Attention of one new token a sequence over the paged cache, see rf/decode/attention_decode.h.
#define RF_WHAT decode

#include "rf/decode/attention_decode.h"

#define RF_K8V4(group) RF_DECODE(k8v4, rf::K8V4, group, yes)
RF_GROUPS(RF_F16)
RF_GROUPS(RF_INT8)
#if RF_IS_COMMON
RF_GROUPS(RF_K8V4)
#endif
