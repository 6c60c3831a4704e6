#include "stream.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "graph.h"
#include "options.h"
#include "report.h"

namespace host {
namespace {

void merge(Clock& into, const Clock& other) {
  for (const auto& [stream, count] : other) into[stream] = std::max(into[stream], count);
}

// The fault that RF_HOST_FAULT plants: once its file is there, a kernel or graph of them never ends
// ("hang"), or the device fails with an error (its number). The file is taken away first, unless
// "always" stands before that.
void plant_fault(const Operation& operation) {
  const char* const file = options().fault;
  const bool computes = operation.name == "a graph" || operation.name.starts_with("kernel ");
  if (!file || !computes || access(file, R_OK)) return;
  std::string word;
  std::ifstream text(file);
  text >> word;
  if (word.empty()) return;  // who makes it has only opened it yet
  if (word == "always") {
    text >> word;
  } else {
    unlink(file);
  }
  if (word == "hang") {
    for (;;) pause();
  }
  report(static_cast<hipError_t>(std::atoi(word.c_str())), "a fault was planted");
}

std::string on_stream(int id) { return id == 0 ? "the null stream" : format("stream %d", id); }

}  // namespace

Stream* Streams::create(bool non_blocking) {
  auto stream = std::make_unique<Stream>();
  stream->id = static_cast<int>(streams_.size()) + 1;
  stream->non_blocking = non_blocking;
  live_.insert(stream.get());
  return streams_.emplace_back(std::move(stream)).get();
}

Stream* Streams::find(void* handle) {
  constexpr uintptr_t kPerThread = 2;  // hipStreamPerThread; 0 and 1 are the null stream
  if (reinterpret_cast<uintptr_t>(handle) <= kPerThread) return &null_;
  auto* stream = static_cast<Stream*>(handle);
  return live_.count(stream) ? stream : nullptr;
}

void Streams::destroy(Stream& stream) {
  complete(stream, stream.queued);
  live_.erase(&stream);
}

std::vector<Stream*> Streams::all() {
  std::vector<Stream*> result(live_.begin(), live_.end());
  std::sort(result.begin(), result.end(), [](Stream* a, Stream* b) { return a->id > b->id; });
  result.push_back(&null_);
  return result;
}

Event* Streams::create_event(unsigned flags) {
  auto* event = new Event{.flags = flags};
  events_.insert(event);
  return event;
}

Event* Streams::find_event(void* handle) {
  auto* event = static_cast<Event*>(handle);
  return events_.count(event) ? event : nullptr;
}

void Streams::destroy_event(Event& event) {
  if (event.stream) complete(*event.stream, event.sequence);
  events_.erase(&event);
  delete &event;
}

hipError_t Streams::enqueue(Stream& stream, Operation operation) {
  if (stream.capture) {
    if (stream.capture->invalid) return hipErrorStreamCaptureInvalidated;
    stream.capture->operations.push_back(std::move(operation));
    return hipSuccess;
  }
  // The null stream waits for all streams, and they for it, unless they are non-blocking.
  std::vector<Stream*> others;
  if (&stream == &null_) {
    for (Stream* other : live_) {
      if (other->non_blocking) continue;
      if (other->capture) {
        other->capture->invalid = true;
        return hipErrorStreamCaptureImplicit;
      }
      others.push_back(other);
    }
  } else if (!stream.non_blocking) {
    others.push_back(&null_);
  }
  for (Stream* other : others) {
    operation.waits_for.push_back({other, other->queued});
    merge(operation.clock, other->clock);
  }
  merge(stream.clock, operation.clock);
  merge(stream.clock, host_);
  operation.clock = stream.clock;
  stream.clock[stream.id] = ++stream.queued;
  for (Allocation* buffer : operation.buffers) buffer->pending++;
  if (operation.when_queued) operation.when_queued();
  stream.queue.push_back(std::move(operation));
  return hipSuccess;
}

hipError_t Streams::complete(Stream& stream, uint64_t count) {
  while (stream.done < count) run_next(stream);
  return sticky_error();
}

void Streams::run_next(Stream& stream) {
  // In the queue until it is done: an operation it waits for may wait for one before it.
  for (const auto& [other, count] : stream.queue.front().waits_for) complete(*other, count);
  Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  const uint64_t sequence = ++stream.done;
  if (sticky_error() == hipSuccess) plant_fault(operation);
  if (sticky_error() == hipSuccess) {
    operation.run();
    check_order(stream, sequence, operation);
  }
  for (Allocation* buffer : operation.buffers) buffer->pending--;
}

void Streams::begin_generation() {
  generation_++;
  host_.clear();
  for (Stream* stream : all()) stream->clock.clear();
}

bool Streams::includes(const Clock& clock, const Use& use) const {
  if (use.generation < generation_) return true;
  const auto entry = clock.find(use.stream);
  return entry != clock.end() && entry->second >= use.sequence;
}

bool Streams::known_to_all(const Use& use) const {
  const auto knows = [&](const Stream* stream) {
    return stream->queue.empty() || includes(stream->queue.front().clock, use);
  };
  return includes(host_, use) && knows(&null_) && std::all_of(live_.begin(), live_.end(), knows);
}

void Streams::check_order(const Stream& stream, uint64_t sequence, const Operation& operation) {
  for (Allocation* buffer : memory().take_touched()) {
    const Extent extents[] = {std::exchange(buffer->read, {}), std::exchange(buffer->written, {})};
    const std::vector<Use> earlier = buffer->uses;
    for (const bool writes : {false, true}) {
      const Extent& extent = extents[writes];
      if (extent.empty()) continue;
      for (const Use& use : earlier) {
        const bool ordered = use.stream == stream.id || includes(operation.clock, use);
        if (ordered || !(writes || use.writes) || !extent.overlaps(use.extent)) continue;
        report(
            hipErrorLaunchFailure,
            format("%s on %s %s %s, which %s on %s %s: no event orders the two",
                   operation.name.c_str(), on_stream(stream.id).c_str(),
                   writes ? "writes" : "reads",
                   memory().describe(reinterpret_cast<void*>(buffer->begin + extent.begin)).c_str(),
                   use.operation.c_str(), on_stream(use.stream).c_str(),
                   use.writes ? "writes" : "reads"));
        return;
      }
      buffer->uses.push_back({extent, writes, stream.id, sequence, generation_, operation.name});
    }
    std::erase_if(buffer->uses, [&](const Use& use) { return known_to_all(use); });
  }
}

hipError_t Streams::synchronize(Stream& stream) {
  host_knows(stream.clock);
  return complete(stream, stream.queued);
}

hipError_t Streams::synchronize_all() {
  for (Stream* stream : all()) synchronize(*stream);
  begin_generation();
  return sticky_error();
}

void Streams::host_knows(const Clock& clock) { merge(host_, clock); }

bool Streams::forbidden_by_capture(const char* call) {
  bool forbidden = false;
  for (Stream* stream : live_) {
    if (!stream->capture || stream->capture->mode != hipStreamCaptureModeGlobal) continue;
    stream->capture->invalid = true;
    forbidden = true;
  }
  if (forbidden) report_call(format("%s while a stream is capturing: the capture is lost", call));
  return forbidden;
}

Streams& streams() {
  static Streams& instance = *new Streams;
  return instance;
}

std::mutex& library_mutex() {
  static std::mutex& instance = *new std::mutex;
  return instance;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace host
