// F16: plain numbers.
#pragma once

#include "rf/formats.h"

namespace rf {

using F16 = Plain<half>;

}  // namespace rf
