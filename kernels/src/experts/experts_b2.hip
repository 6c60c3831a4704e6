// rf_experts_choose_gate_up_<name> for so few blocks that all of them run at once, two on each
// multiprocessor: their waves have as many registers as there are, for weights on their way.
#include "rf/experts/choose_gate_up.h"

#define RF_CHOOSE_B2(name, Format, ...) \
  RF_CHOOSE_GATE_UP(rf_experts_choose_gate_up_b2_##name, Format, 2)
RF_FORMATS(RF_CHOOSE_B2)
