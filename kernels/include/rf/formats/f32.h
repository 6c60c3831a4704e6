// F32: plain numbers.
#pragma once

#include "rf/weights/formats.h"

namespace rf {

using F32 = Plain<float>;

}  // namespace rf
