/* Streams, events, capture and graphs. The handles are CUDA's own. */
#include "nvidia.h"

/* hipEventDefault, -BlockingSync, -DisableTiming, -Interprocess; HIP has more, about caches. */
enum { EVENT_FLAGS = 7 };

HIP_API hipError_t hipStreamCreate(CUstream* stream) {
  REQUIRE(stream);
  FORWARD(StreamCreate(stream, 0));
}

HIP_API hipError_t hipStreamCreateWithFlags(CUstream* stream, unsigned flags) {
  REQUIRE(stream);
  FORWARD(StreamCreate(stream, flags));
}

HIP_API hipError_t hipStreamDestroy(CUstream stream) {
  REQUIRE(stream);
  FORWARD(StreamDestroy(stream));
}

HIP_API hipError_t hipStreamSynchronize(CUstream stream) { FORWARD(StreamSynchronize(stream)); }

HIP_API hipError_t hipStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  FORWARD(StreamWaitEvent(stream, event, flags));
}

HIP_API hipError_t hipEventCreate(CUevent* event) {
  REQUIRE(event);
  FORWARD(EventCreate(event, 0));
}

HIP_API hipError_t hipEventCreateWithFlags(CUevent* event, unsigned flags) {
  REQUIRE(event);
  FORWARD(EventCreate(event, flags & EVENT_FLAGS));
}

HIP_API hipError_t hipEventDestroy(CUevent event) {
  REQUIRE(event);
  FORWARD(EventDestroy(event));
}

HIP_API hipError_t hipEventRecord(CUevent event, CUstream stream) {
  REQUIRE(event);
  FORWARD(EventRecord(event, stream));
}

HIP_API hipError_t hipEventSynchronize(CUevent event) {
  REQUIRE(event);
  FORWARD(EventSynchronize(event));
}

HIP_API hipError_t hipEventQuery(CUevent event) {
  REQUIRE(event);
  FORWARD(EventQuery(event));
}

HIP_API hipError_t hipEventElapsedTime(float* milliseconds, CUevent start, CUevent stop) {
  REQUIRE(milliseconds);
  FORWARD(EventElapsedTime(milliseconds, start, stop));
}

HIP_API hipError_t hipStreamBeginCapture(CUstream stream, int mode) {
  FORWARD(StreamBeginCapture(stream, mode));
}

HIP_API hipError_t hipStreamEndCapture(CUstream stream, CUgraph* graph) {
  FORWARD(StreamEndCapture(stream, graph));
}

HIP_API hipError_t hipGraphInstantiate(CUgraphExec* executable, CUgraph graph, void** node,
                                       char* log, size_t log_bytes) {
  if (node) *node = NULL;
  if (log && log_bytes) *log = '\0';
  FORWARD(GraphInstantiate(executable, graph, 0));
}

HIP_API hipError_t hipGraphLaunch(CUgraphExec executable, CUstream stream) {
  FORWARD(GraphLaunch(executable, stream));
}

HIP_API hipError_t hipGraphDestroy(CUgraph graph) { FORWARD(GraphDestroy(graph)); }

HIP_API hipError_t hipGraphExecDestroy(CUgraphExec executable) {
  FORWARD(GraphExecDestroy(executable));
}
