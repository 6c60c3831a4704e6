// What every entry point begins with.
#pragma once

#include <mutex>

#include "report.h"
#include "stream.h"

// Takes the lock; after a finding every call answers with its error.
#define ENTER()                                                  \
  const std::lock_guard<std::mutex> lock(host::library_mutex()); \
  if (host::sticky_error() != hipSuccess) return host::sticky_error()

#define STREAM(name, handle)                               \
  host::Stream* const name = host::streams().find(handle); \
  if (!name) return hipErrorInvalidHandle

#define EVENT(name, handle)                                     \
  host::Event* const name = host::streams().find_event(handle); \
  if (!name) return hipErrorInvalidHandle

// Calls that synchronise are not allowed while a stream captures in global mode.
#define NOT_WHILE_CAPTURING(call) \
  if (host::streams().forbidden_by_capture(call)) return hipErrorStreamCaptureUnsupported
