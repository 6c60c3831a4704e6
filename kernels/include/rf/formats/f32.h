// F32: plain numbers.
#pragma once

#include "rf/formats.h"

namespace rf {

using F32 = Plain<float>;

}  // namespace rf
