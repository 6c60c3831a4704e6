// rf_attention_decode_* in blocks of twice as many waves, each of which takes half as many steps:
// for launches whose blocks are no more than multiprocessors. One block runs on each, and its waves
// have as many registers as there are.
#define RF_WHAT decode_w8
#define RF_DECODE_WAVES 8

#include "rf/decode/attention_decode.h"

RF_GROUPS(RF_F16)
RF_GROUPS(RF_INT8)
