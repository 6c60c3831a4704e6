// Streams, events, capture and graphs.
#include <cstring>
#include <map>

#include "api.h"
#include "graph.h"
#include "options.h"

using namespace host;

namespace {

// Graphs and executable graphs, by handle. Both are the recorded operations.
std::map<void*, std::shared_ptr<Graph>> graphs;

Graph* find_graph(void* handle) {
  const auto entry = graphs.find(handle);
  return entry == graphs.end() ? nullptr : entry->second.get();
}

void* keep(std::shared_ptr<Graph> graph) {
  void* handle = graph.get();
  graphs[handle] = std::move(graph);
  return handle;
}

hipError_t refuse_synchronising_capture(Stream& stream, const char* call) {
  stream.capture->invalid = true;
  report_call(format("%s on a stream that is capturing", call));
  return hipErrorStreamCaptureUnsupported;
}

// Runs a graph. The fault that RF_HOST_STALE_REPLAYS plants: behind so many operations, kernels
// read of what was last brought from the host what the launch before had been given.
hipError_t replay(Graph& graph, const Stream& stream) {
  char* const begin = static_cast<char*>(stream.upload.begin);
  const std::vector<char> fresh(begin, begin + stream.upload.bytes);
  const bool stale = graph.upload.size() == fresh.size();
  bool replaced = false;
  int number = 0;
  for (const Operation& operation : graph.operations) {
    if (number++ == options().stale_replays && stale) {
      std::memcpy(begin, graph.upload.data(), fresh.size());
      replaced = true;
    }
    if (hipError_t error = operation.run()) return error;
  }
  if (replaced) std::memcpy(begin, fresh.data(), fresh.size());
  graph.upload = fresh;
  return hipSuccess;
}

}  // namespace

HIP_API hipError_t hipStreamCreateWithFlags(void** handle, unsigned flags) {
  ENTER();
  *handle = streams().create(flags & hipStreamNonBlocking);
  return hipSuccess;
}

HIP_API hipError_t hipStreamCreate(void** handle) {
  return hipStreamCreateWithFlags(handle, hipStreamDefault);
}

HIP_API hipError_t hipStreamDestroy(void* handle) {
  const std::lock_guard<std::mutex> lock(library_mutex());
  STREAM(stream, handle);
  if (stream == &streams().null_stream()) return hipErrorInvalidHandle;
  streams().destroy(*stream);
  return hipSuccess;
}

HIP_API hipError_t hipStreamSynchronize(void* handle) {
  ENTER();
  STREAM(stream, handle);
  if (stream->capture) return refuse_synchronising_capture(*stream, "hipStreamSynchronize");
  return streams().synchronize(*stream);
}

HIP_API hipError_t hipStreamWaitEvent(void* handle, void* event_handle, unsigned) {
  ENTER();
  STREAM(stream, handle);
  EVENT(event, event_handle);
  if (event->capture) {
    // The stream joins the capture that the event belongs to.
    if (stream->capture && stream->capture != event->capture) {
      return hipErrorStreamCaptureMerge;
    }
    stream->capture = event->capture;
    event->capture->joined.insert(stream);
    return hipSuccess;
  }
  if (!event->stream) return hipSuccess;
  Operation wait{"a wait for an event", [] { return hipSuccess; }, {}};
  wait.waits_for.push_back({event->stream, event->sequence});
  wait.clock = event->clock;
  return streams().enqueue(*stream, std::move(wait));
}

HIP_API hipError_t hipEventCreateWithFlags(void** handle, unsigned flags) {
  ENTER();
  *handle = streams().create_event(flags);
  return hipSuccess;
}

HIP_API hipError_t hipEventCreate(void** handle) { return hipEventCreateWithFlags(handle, 0); }

HIP_API hipError_t hipEventDestroy(void* handle) {
  const std::lock_guard<std::mutex> lock(library_mutex());
  EVENT(event, handle);
  streams().destroy_event(*event);
  return hipSuccess;
}

HIP_API hipError_t hipEventRecord(void* handle, void* stream_handle) {
  ENTER();
  EVENT(event, handle);
  STREAM(stream, stream_handle);
  event->capture = stream->capture;
  if (stream->capture) return hipSuccess;
  const auto run = [event, sequence = stream->queued + 1, stream] {
    const bool current = streams().find_event(event) && event->stream == stream;
    if (current && event->sequence == sequence) event->seconds = seconds_now();
    return hipSuccess;
  };
  if (hipError_t error = streams().enqueue(*stream, {"an event", run, {}})) return error;
  event->stream = stream;
  event->sequence = stream->queued;
  event->clock = stream->clock;
  return hipSuccess;
}

HIP_API hipError_t hipEventSynchronize(void* handle) {
  ENTER();
  EVENT(event, handle);
  if (event->capture) return hipErrorStreamCaptureUnsupported;
  if (!event->stream) return hipSuccess;
  streams().host_knows(event->clock);
  return streams().complete(*event->stream, event->sequence);
}

// A query lets one operation run, so that polling comes to an end.
HIP_API hipError_t hipEventQuery(void* handle) {
  ENTER();
  EVENT(event, handle);
  if (event->capture) return hipErrorStreamCaptureUnsupported;
  if (!event->stream) return hipSuccess;
  if (event->stream->done >= event->sequence) {
    streams().host_knows(event->clock);
    return hipSuccess;
  }
  const hipError_t error = streams().complete(*event->stream, event->stream->done + 1);
  return error ? error : hipErrorNotReady;
}

HIP_API hipError_t hipEventElapsedTime(float* milliseconds, void* start, void* stop) {
  ENTER();
  EVENT(first, start);
  EVENT(second, stop);
  for (const Event* event : {first, second}) {
    if (!event->stream || (event->flags & hipEventDisableTiming)) {
      return hipErrorInvalidHandle;
    }
    if (event->stream->done < event->sequence) return hipErrorNotReady;
  }
  *milliseconds = static_cast<float>((second->seconds - first->seconds) * 1e3);
  return hipSuccess;
}

HIP_API hipError_t hipStreamBeginCapture(void* handle, int mode) {
  ENTER();
  STREAM(stream, handle);
  if (stream == &streams().null_stream()) return hipErrorStreamCaptureUnsupported;
  if (stream->capture) return hipErrorInvalidValue;
  stream->capture = std::make_shared<Graph>();
  stream->capture->mode = mode;
  stream->capture->origin = stream;
  stream->capture->joined.insert(stream);
  return hipSuccess;
}

HIP_API hipError_t hipStreamEndCapture(void* handle, void** graph) {
  ENTER();
  STREAM(stream, handle);
  *graph = nullptr;
  const std::shared_ptr<Graph> capture = stream->capture;
  if (!capture) return hipErrorInvalidValue;
  if (capture->origin != stream) return hipErrorStreamCaptureUnmatched;
  for (Stream* joined : capture->joined) joined->capture = nullptr;
  capture->joined.clear();
  if (capture->invalid) return hipErrorStreamCaptureInvalidated;
  *graph = keep(capture);
  return hipSuccess;
}

HIP_API hipError_t hipGraphInstantiate(void** executable, void* handle, void** node, char*,
                                       size_t) {
  ENTER();
  if (node) *node = nullptr;
  const Graph* graph = find_graph(handle);
  if (!graph) return hipErrorInvalidHandle;
  *executable = keep(std::make_shared<Graph>(*graph));
  return hipSuccess;
}

HIP_API hipError_t hipGraphLaunch(void* handle, void* stream_handle) {
  ENTER();
  STREAM(stream, stream_handle);
  Graph* found = find_graph(handle);
  if (!found) return hipErrorInvalidHandle;
  const std::shared_ptr<Graph> graph = graphs[handle];
  Operation launch{"a graph", [graph, stream] { return replay(*graph, *stream); }, {}};
  for (const Operation& operation : graph->operations) {
    for (Allocation* buffer : operation.buffers) {
      if (buffer->state == Allocation::State::kLive) {
        launch.buffers.push_back(buffer);
        continue;
      }
      report(hipErrorIllegalAddress,
             format("hipGraphLaunch: %s in the graph uses %s", operation.name.c_str(),
                    memory().describe(reinterpret_cast<void*>(buffer->begin)).c_str()));
      return hipErrorIllegalAddress;
    }
  }
  launch.when_queued = [graph] {
    for (const Operation& operation : graph->operations) {
      if (operation.when_queued) operation.when_queued();
    }
  };
  return streams().enqueue(*stream, std::move(launch));
}

HIP_API hipError_t hipGraphDestroy(void* handle) {
  const std::lock_guard<std::mutex> lock(library_mutex());
  return graphs.erase(handle) ? hipSuccess : hipErrorInvalidHandle;
}

HIP_API hipError_t hipGraphExecDestroy(void* handle) { return hipGraphDestroy(handle); }
