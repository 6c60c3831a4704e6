// Attention of one new token a sequence whose queries and keys are normed as whole rows. These are
// kernels of their own, as others have no scalar registers for that.
#include "rf/decode/attention_decode.h"

#define RF_MORE_PARAMETERS
#define RF_MORE_ARGUMENTS
#define RF_FUNCTION(Stored, group)                                                     \
  rf::attention_decode<rf::HeadNorms::kJoint, Stored, RF_KEY_DIM, RF_VALUE_DIM, group, \
                       RF_VALUES_IN_KEYS>
#define RF_JOINT(kind, Stored, group, has_scales)                                            \
  RF_ATTENTION_DECODE(RF_NAME(decode_joint, kind, RF_HEAD, group), RF_BLOCKS(Stored, group), \
                      Stored, group, has_scales)

#define RF_F16(group) RF_JOINT(f16, rf::half, group, no)
#define RF_INT8(group) RF_JOINT(int8, int8_t, group, yes)
RF_GROUPS(RF_F16)
RF_GROUPS(RF_INT8)
