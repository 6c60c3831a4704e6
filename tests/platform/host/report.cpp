#include "report.h"

#include <cstdarg>
#include <cstdio>

namespace host {
namespace {

hipError_t sticky = hipSuccess;
int findings = 0;
std::string first_finding;

}  // namespace

void report_call(const std::string& text) {
  if (findings++ == 0) first_finding = text;
  std::fprintf(stderr, "host platform: %s\n", text.c_str());
}

void report(hipError_t error, const std::string& text) {
  if (sticky == hipSuccess) sticky = error;
  report_call(text);
}

hipError_t sticky_error() { return sticky; }
int finding_count() { return findings; }
const char* last_finding() { return first_finding.c_str(); }

void clear_findings() {
  sticky = hipSuccess;
  findings = 0;
  first_finding.clear();
}

std::string format(const char* text, ...) {
  char buffer[1024];
  va_list arguments;
  va_start(arguments, text);
  std::vsnprintf(buffer, sizeof buffer, text, arguments);
  va_end(arguments);
  return buffer;
}

}  // namespace host
