// Streams and events, simulated deterministically: an operation runs as late as the rules allow.
//
// Nothing runs when it is queued. When the host waits for something, exactly what that needs runs,
// and no more. So a result that is read too early is never there by luck, a buffer that is freed or
// overwritten too early is always still needed, and a stream that should have waited for another
// always finds that it did not. Vector clocks say, besides, whether two operations that touched the
// same bytes were ordered at all.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "hip_abi.h"
#include "memory.h"

namespace host {

// For each stream (by id) the number of its operations known to be done.
using Clock = std::map<int, uint64_t>;

struct Stream;
struct Graph;

struct Operation {
  std::string name;
  std::function<hipError_t()> run;
  std::vector<Allocation*> buffers;  // that it was given; they must stay alive until it has run
  std::function<void()> when_queued = {};  // the same for a graph, each time it is launched

  Clock clock = {};  // what is done before it begins
  std::vector<std::pair<Stream*, uint64_t>> waits_for = {};
};

// Bytes of device memory.
struct Range {
  void* begin = nullptr;
  size_t bytes = 0;
};

struct Stream {
  int id = 0;
  bool non_blocking = false;
  std::deque<Operation> queue = {};
  uint64_t queued = 0, done = 0;  // operations, since the stream was created
  Clock clock = {};               // what is done once all of `queue` is
  std::shared_ptr<Graph> capture = nullptr;
  Range upload = {};  // where what came from the host last went
};

struct Event {
  unsigned flags = 0;
  Stream* stream = nullptr;  // nullptr until it is recorded
  uint64_t sequence = 0;
  Clock clock = {};
  double seconds = 0;  // when it was reached
  std::shared_ptr<Graph> capture = nullptr;
};

// Whenever the host has waited for all streams, a generation begins: whatever comes later is behind
// all that was before. Clocks then begin anew, as they would else have an entry for each stream
// that there ever was, and each operation copies one.
class Streams {
 public:
  Stream& null_stream() { return null_; }
  Stream* create(bool non_blocking);
  // The stream behind a handle, nullptr if there is none.
  Stream* find(void* handle);
  void destroy(Stream& stream);
  std::vector<Stream*> all();

  Event* create_event(unsigned flags);
  Event* find_event(void* handle);
  void destroy_event(Event& event);

  // Queues the operation, or adds it to the graph that the stream is capturing.
  hipError_t enqueue(Stream& stream, Operation operation);

  // Runs what must have run for the first `count` operations of the stream to be done.
  hipError_t complete(Stream& stream, uint64_t count);
  // The same for all of the stream, and from here on the host knows that it is done.
  hipError_t synchronize(Stream& stream);
  hipError_t synchronize_all();
  void host_knows(const Clock& clock);

  // Whether some capture forbids calls that synchronise; if so, it becomes invalid.
  bool forbidden_by_capture(const char* call);

 private:
  void run_next(Stream& stream);
  void begin_generation();
  // Whether a clock says that this use is done.
  bool includes(const Clock& clock, const Use& use) const;
  // Whether this use comes before everything that is queued or ever will be.
  bool known_to_all(const Use& use) const;
  void check_order(const Stream& stream, uint64_t sequence, const Operation& operation);

  Stream null_;
  std::vector<std::unique_ptr<Stream>> streams_;  // destroyed ones too: clocks refer to them
  std::set<Stream*> live_;
  std::set<Event*> events_;
  Clock host_;
  uint64_t generation_ = 0;
};

Streams& streams();

// One lock for the whole library. Kernels run in the thread that waits for them, with it held.
std::mutex& library_mutex();

double seconds_now();

}  // namespace host
