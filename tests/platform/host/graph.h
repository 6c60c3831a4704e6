// What a stream captured.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "stream.h"

namespace host {

struct Graph {
  std::vector<Operation> operations;
  int mode = 0;              // hipStreamCaptureMode*
  Stream* origin = nullptr;  // the stream that began the capture
  std::set<Stream*> joined;  // and those that joined it through events
  bool invalid = false;
  std::vector<char> upload = {};  // what had come from the host last at the last launch
};

}  // namespace host
