#include "options.h"

#include <cstdlib>
#include <cstring>

namespace host {
namespace {

long number(const char* variable, long otherwise) {
  const char* text = std::getenv(variable);
  return text && *text ? std::atol(text) : otherwise;
}

Options from_environment() {
  Options result;
  result.wave = number("RF_HOST_WAVE", 32) == 64 ? 64 : 32;
  result.wave_shift = result.wave == 64 ? 6 : 5;
  if (const char* order = std::getenv("RF_HOST_LANE_ORDER")) result.order = lane_order_named(order);
  result.seed = static_cast<uint32_t>(number("RF_HOST_SEED", 1));
  result.memory = static_cast<size_t>(number("RF_HOST_MEMORY_MB", 4096)) << 20;
  result.devices = static_cast<int>(number("RF_HOST_DEVICES", 1));
  result.patience = static_cast<int>(number("RF_HOST_PATIENCE", 60));
  result.stale_replays = static_cast<int>(number("RF_HOST_STALE_REPLAYS", -1));
  result.fault = std::getenv("RF_HOST_FAULT");
  result.watched = static_cast<int>(number("RF_HOST_WATCHED", 0));
  result.report_leaks = number("RF_HOST_LEAKS", 0) != 0;
  return result;
}

}  // namespace

Options* options_instance = nullptr;

Options& make_options() { return *(options_instance = new Options(from_environment())); }

LaneOrder lane_order_named(const char* name) {
  if (!std::strcmp(name, "reverse")) return LaneOrder::kReverse;
  if (!std::strcmp(name, "random")) return LaneOrder::kRandom;
  return LaneOrder::kForward;
}

}  // namespace host
