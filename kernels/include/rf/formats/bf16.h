// BF16: plain numbers.
#pragma once

#include "rf/weights/formats.h"

namespace rf {

using BF16 = Plain<bf16>;

}  // namespace rf
