// F16: plain numbers.
#pragma once

#include "rf/weights/formats.h"

namespace rf {

using F16 = Plain<half>;

}  // namespace rf
