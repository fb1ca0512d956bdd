// Streams, events and kernels of the fake CUDA run time.
#include <algorithm>
#include <chrono>

#include "fakegpu/machine.hpp"

using namespace trireme::fakegpu;

namespace trireme::fakegpu {
namespace {

cudaStream_t legacy_stream() {
  static auto* stream = new CUstream_st(true);  // never destroyed, as its thread never ends
  return stream;
}
cudaStream_t real(cudaStream_t stream) { return stream == nullptr ? legacy_stream() : stream; }

// Whether this call is the one to be left out. With the machine's mutex.
bool is_left_out(Edge::Call call) {
  Machine& m = machine();
  const int index = m.calls[{call, m.during}]++;
  if (!m.edge || m.edge->call != call || m.edge->during != m.during || m.edge->index != index)
    return false;
  ++m.left_out;
  return true;
}

void push(cudaStream_t stream, std::function<void()> task) {
  if (stream->capture != nullptr) stream->capture->broken = true;  // events are not recorded here
  stream->queue.push_back(std::move(task));
  machine().changed.notify_all();
}

}  // namespace

void merge(Clock& into, const Clock& other) {
  into.resize(std::max(into.size(), other.size()));
  for (size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

uint64_t at(const Clock& clock, size_t timeline) {
  return timeline < clock.size() ? clock[timeline] : 0;
}

void Order::add(size_t timeline, const Clock& clock, const std::string& what,
                const std::vector<Range>& ranges) {
  for (const Range& range : ranges) {
    const auto* begin = static_cast<const std::byte*>(range.data);
    for (const Use& use : uses_) {
      const auto* other = static_cast<const std::byte*>(use.range.data);
      const bool meet = begin < other + use.range.bytes && other < begin + range.bytes;
      if (!meet || !(range.written || use.range.written) || use.count <= at(clock, use.timeline))
        continue;
      findings_.push_back(what + (range.written ? " writes" : " reads") + " what " + use.what +
                          (use.range.written ? " writes" : " reads") + ", in no order");
    }
  }
  for (const Range& range : ranges) uses_.push_back({timeline, at(clock, timeline), what, range});
}

void Order::end(const void* data, size_t bytes, const Clock& clock) {
  add(0, clock, "free", {writes(const_cast<void*>(data), bytes)});
  const auto* begin = static_cast<const std::byte*>(data);
  std::erase_if(uses_, [begin, bytes](const Use& use) {
    const auto* other = static_cast<const std::byte*>(use.range.data);
    return begin < other + use.range.bytes && other < begin + bytes;
  });
}

void Order::forget(const Clock& over) {
  std::erase_if(uses_, [&over](const Use& use) { return use.count <= at(over, use.timeline); });
}

Machine& machine() {
  static auto* machine = new Machine;
  return *machine;
}

void dawdle(std::minstd_rand& random, int longest_us) {
  if (longest_us <= 0) return;
  std::this_thread::sleep_for(
      std::chrono::microseconds(std::uniform_int_distribution<int>(0, longest_us)(random)));
}

namespace {

// With the machine's mutex.
void put(cudaStream_t stream, const Operation& operation) {
  Machine& m = machine();
  operation.begins();
  merge(stream->clock, m.host);
  stream->clock.resize(std::max(stream->clock.size(), stream->timeline + 1));
  ++stream->clock[stream->timeline];
  m.order.add(stream->timeline, stream->clock, std::string(m.during) + "/" + operation.what,
              operation.ranges);
  push(stream, [stream, body = operation.body] {
    const int longest = stream->legacy ? machine().delays.legacy_us : machine().delays.others_us;
    dawdle(stream->random, longest);
    body();
  });
}

}  // namespace

void enqueue(cudaStream_t stream, Operation operation) {
  stream = real(stream);
  const std::lock_guard lock(machine().mutex);
  if (stream->capture == nullptr) {
    put(stream, operation);
  } else if (stream->capture->by != std::this_thread::get_id()) {
    stream->capture->broken = true;
  } else {
    stream->capture->graph.operations.push_back(std::move(operation));
  }
}

void drain(cudaStream_t stream) {
  Machine& m = machine();
  stream = real(stream);
  std::unique_lock lock(m.mutex);
  const Clock clock = stream->clock;
  m.changed.wait(lock, [stream] { return stream->queue.empty(); });
  merge(m.host, clock);
  m.order.forget(m.host);
}

void drain_all() {
  legacy_stream();
  std::vector<cudaStream_t> streams;
  {
    const std::lock_guard lock(machine().mutex);
    streams = machine().streams;
  }
  for (const cudaStream_t stream : streams) drain(stream);
}

void settle() {
  std::unique_lock lock(machine().mutex);
  machine().changed.wait(lock, [] {
    return std::ranges::all_of(machine().streams,
                               [](const auto* stream) { return stream->queue.empty(); });
  });
}

cudaError_t launch(cudaStream_t stream, std::vector<Range> ranges, std::function<void()> body) {
  for (const Range& range : ranges) {
    if (!on_device(range.data, range.bytes)) return fail(cudaErrorInvalidValue);
  }
  enqueue(stream, {.what = "kernel", .ranges = std::move(ranges), .body = std::move(body)});
  return cudaSuccess;
}

void set_delays(const Delays& delays) {
  drain_all();
  const std::lock_guard lock(machine().mutex);
  machine().delays = delays;
  for (const cudaStream_t stream : machine().streams)
    stream->random.seed(delays.seed + static_cast<unsigned>(stream->timeline));
}

During::During(const char* what) {
  const std::lock_guard lock(machine().mutex);
  machine().calls.clear();
  before_ = std::exchange(machine().during, what);
}
During::~During() {
  const std::lock_guard lock(machine().mutex);
  machine().during = before_;
}

void leave_out(std::optional<Edge> edge) {
  const std::lock_guard lock(machine().mutex);
  machine().edge = std::move(edge);
  machine().left_out = 0;
}
int left_out() {
  const std::lock_guard lock(machine().mutex);
  return machine().left_out;
}

std::vector<std::string> take_findings() {
  const std::lock_guard lock(machine().mutex);
  return machine().order.take_findings();
}

}  // namespace trireme::fakegpu

CUstream_st::CUstream_st(bool is_legacy) : legacy(is_legacy) {
  Machine& m = machine();
  {
    const std::lock_guard lock(m.mutex);
    timeline = m.timelines++;
    random.seed(m.delays.seed + static_cast<unsigned>(timeline));
    m.streams.push_back(this);
  }
  thread = std::thread([this] { work(); });
}

CUstream_st::~CUstream_st() {
  Machine& m = machine();
  {
    const std::lock_guard lock(m.mutex);
    ends = true;
    std::erase(m.streams, this);
  }
  m.changed.notify_all();
  thread.join();
}

void CUstream_st::work() {
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  while (true) {
    m.changed.wait(lock, [this] { return ends || !queue.empty(); });
    if (queue.empty()) return;
    const auto task = queue.front();
    lock.unlock();
    task();
    lock.lock();
    queue.pop_front();
    m.changed.notify_all();
  }
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int) {
  if (flags != cudaStreamNonBlocking)
    return fail(
        cudaErrorNotSupported);  // nothing here waits for the legacy default stream by itself
  *stream = new CUstream_st(false);
  return cudaSuccess;
}

// What is in the stream still runs, as in CUDA; here the caller waits for it.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  {
    const std::lock_guard lock(machine().mutex);
    if (is_left_out(Edge::Call::synchronize)) return cudaSuccess;
  }
  drain(stream);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  drain_all();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Machine& m = machine();
  stream = real(stream);
  const std::lock_guard lock(m.mutex);
  if (is_left_out(Edge::Call::record)) return cudaSuccess;
  merge(stream->clock, m.host);
  event->state->clock = stream->clock;
  push(stream, [state = event->state, count = ++event->state->recorded] {
    const std::lock_guard inner(machine().mutex);
    state->reached = std::max(state->reached, count);
  });
  return cudaSuccess;
}

// Of an event that takes the time: nothing is ordered by it, and it is no call that can be left
// out.
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int) {
  const std::lock_guard lock(machine().mutex);
  push(real(stream), [state = event->state, count = ++event->state->recorded] {
    const std::lock_guard inner(machine().mutex);
    state->reached = std::max(state->reached, count);
    state->when = std::chrono::steady_clock::now();
  });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(machine().mutex);
  return event->state->reached < event->state->recorded ? fail(cudaErrorNotReady) : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t last) {
  const std::lock_guard lock(machine().mutex);
  for (const cudaEvent_t event : {first, last}) {
    if (event->state->recorded == 0) return fail(cudaErrorInvalidResourceHandle);
    if (event->state->reached < event->state->recorded) return fail(cudaErrorNotReady);
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(last->state->when - first->state->when).count();
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  Machine& m = machine();
  stream = real(stream);
  const std::lock_guard lock(m.mutex);
  if (is_left_out(Edge::Call::wait)) return cudaSuccess;
  merge(stream->clock, event->state->clock);
  push(stream, [state = event->state, count = event->state->recorded] {
    std::unique_lock inner(machine().mutex);
    machine().changed.wait(inner, [&] { return state->reached >= count; });
  });
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr || mode != cudaStreamCaptureModeThreadLocal)
    return fail(cudaErrorStreamCaptureUnsupported);
  const std::lock_guard lock(machine().mutex);
  if (stream->capture != nullptr) return fail(cudaErrorIllegalState);
  stream->capture = std::make_unique<CUstream_st::Capture>();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(machine().mutex);
  *graph = nullptr;
  const auto capture = std::move(stream->capture);
  if (capture == nullptr) return fail(cudaErrorIllegalState);
  if (capture->broken) return fail(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st(std::move(capture->graph));
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = reinterpret_cast<cudaGraphExec_t>(new CUgraph_st(*graph));
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  stream = real(stream);
  const std::lock_guard lock(machine().mutex);
  for (const Operation& operation : reinterpret_cast<CUgraph_st*>(graph)->operations)
    put(stream, operation);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<CUgraph_st*>(graph);
  return cudaSuccess;
}
