// Attention of one new token a sequence whose queries and keys are normed as whole rows. These are
// kernels of their own, as others have no scalar registers for that.
#define RF_WHAT decode_joint
#define RF_NORMS rf::HeadNorms::kJoint

#include "rf/decode/attention_decode.h"

RF_GROUPS(RF_F16)
RF_GROUPS(RF_INT8)
