// What the library has found wrong. The first finding of a launch or call ends it.
#pragma once

#include <string>

#include "hip_abi.h"

namespace host {

// Prints the finding and makes `error` the answer of every later call, as a device fault does.
void report(hipError_t error, const std::string& text);

// Prints a finding that leaves the device usable: the call itself was wrong.
void report_call(const std::string& text);

hipError_t sticky_error();
int finding_count();
const char* last_finding();
void clear_findings();

std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));

}  // namespace host
