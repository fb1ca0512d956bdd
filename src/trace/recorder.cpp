#include "trace/recorder.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "trace/clock.hpp"

namespace trireme::trace {

namespace {

// Every second sample goes: the rest still shows the course.
template <class T>
int64_t thin_out(std::vector<T>& list) {
  const size_t before = list.size();
  for (size_t i = 0; 2 * i < before; ++i) list[i] = list[2 * i];
  list.resize((before + 1) / 2);
  return static_cast<int64_t>(before - list.size());
}

}  // namespace

std::atomic<const Forward*> forward{nullptr};

void ThreadRecord::clear() {
  const std::lock_guard guard(lock_);
  nodes_.assign(1, Node{});
  events_.clear();
  instants_.clear();
  counters_.clear();
  counter_totals_.clear();
  current_ = 0;
  dropped_ = 0;
}

int32_t ThreadRecord::child(int32_t parent, const char* name, Category category) {
  // Only the owner changes the tree, so it reads without the lock. The same text may have several
  // addresses.
  for (int32_t i = nodes_[static_cast<size_t>(parent)].first_child; i >= 0;
       i = nodes_[static_cast<size_t>(i)].next_sibling) {
    if (nodes_[static_cast<size_t>(i)].name == name) return i;
  }
  for (int32_t i = nodes_[static_cast<size_t>(parent)].first_child; i >= 0;
       i = nodes_[static_cast<size_t>(i)].next_sibling) {
    if (std::strcmp(nodes_[static_cast<size_t>(i)].name, name) == 0) return i;
  }
  return add_child(parent, name, category);
}

int32_t ThreadRecord::add_child(int32_t parent, const char* name, Category category) {
  const std::lock_guard guard(lock_);
  const auto index = static_cast<int32_t>(nodes_.size());
  Node node;
  node.name = name;
  node.parent = parent;
  node.depth = nodes_[static_cast<size_t>(parent)].depth + 1;
  node.category = category;
  nodes_.push_back(node);
  // At the end of the list of siblings: the table shows them in the order in which they first ran.
  int32_t* link = &nodes_[static_cast<size_t>(parent)].first_child;
  while (*link >= 0) link = &nodes_[static_cast<size_t>(*link)].next_sibling;
  *link = index;
  return index;
}

int32_t ThreadRecord::enter(const char* name, Category category, int64_t argument,
                            uint64_t& begin) {
  const int32_t parent = current_.load(std::memory_order_relaxed);
  const int32_t index = child(parent, name, category);
  Node& node = nodes_[static_cast<size_t>(index)];
  std::atomic_ref(node.open_argument).store(argument, std::memory_order_relaxed);
  begin = ticks();
  std::atomic_ref(node.open_since).store(begin, std::memory_order_relaxed);
  current_.store(index, std::memory_order_relaxed);
  return parent;
}

void ThreadRecord::leave(int32_t parent, const Event& event) {
  const std::lock_guard guard(lock_);
  Node& node = nodes_[static_cast<size_t>(current_.load(std::memory_order_relaxed))];
  const uint64_t spent = event.end - event.begin;
  ++node.calls;
  node.ticks += spent;
  node.longest = std::max(node.longest, spent);
  node.bytes += event.bytes;
  std::atomic_ref(node.open_since).store(0, std::memory_order_relaxed);
  current_.store(parent, std::memory_order_relaxed);
  keep(event, node.depth);
}

void ThreadRecord::add_event(const Event& event) {
  const std::lock_guard guard(lock_);
  keep(event, event.depth);
}

void ThreadRecord::keep(const Event& event, int32_t depth) {
  Recorder& recorder = Recorder::instance();
  if (!recorder.events_on.load(std::memory_order_relaxed)) return;
  if (events_.size() >= recorder.capacity.load(std::memory_order_relaxed)) drop_shorter_half();
  events_.push_back(event);
  events_.back().depth = depth;
}

// Whatever is left of properly nested slices is properly nested.
void ThreadRecord::drop_shorter_half() {
  const size_t keep = events_.size() / 2;
  const auto longer = [](const Event& a, const Event& b) {
    return a.end - a.begin > b.end - b.begin;
  };
  std::nth_element(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(keep),
                   events_.end(), longer);
  dropped_ += static_cast<int64_t>(events_.size() - keep);
  events_.resize(keep);
}

void ThreadRecord::add_counter(const char* name, double value) {
  Recorder& recorder = Recorder::instance();
  const std::lock_guard guard(lock_);
  const auto total = std::find_if(
      counter_totals_.begin(), counter_totals_.end(),
      [&](const CounterTotal& t) { return t.name == name || std::strcmp(t.name, name) == 0; });
  if (total == counter_totals_.end()) {
    counter_totals_.push_back({name, value});
  } else {
    total->max = std::max(total->max, value);
  }
  if (!recorder.events_on.load(std::memory_order_relaxed)) return;
  if (counters_.size() >= recorder.capacity.load(std::memory_order_relaxed))
    dropped_ += thin_out(counters_);
  counters_.push_back({name, ticks(), value});
}

void ThreadRecord::add_instant(const char* name, int64_t argument) {
  Recorder& recorder = Recorder::instance();
  if (!recorder.events_on.load(std::memory_order_relaxed)) return;
  const std::lock_guard guard(lock_);
  if (instants_.size() >= recorder.capacity.load(std::memory_order_relaxed))
    dropped_ += thin_out(instants_);
  instants_.push_back({name, ticks(), argument});
}

ThreadRecord::Copy ThreadRecord::copy(What what) {
  const std::lock_guard guard(lock_);
  Copy out;
  out.id = id_;
  out.name = name_;
  out.nodes.reserve(nodes_.size());
  for (Node& node : nodes_) {
    // Field by field where the owner may write at this moment.
    const uint64_t since = std::atomic_ref(node.open_since).load(std::memory_order_relaxed);
    const int64_t argument = std::atomic_ref(node.open_argument).load(std::memory_order_relaxed);
    Node& to = out.nodes.emplace_back();
    to.name = node.name;
    to.parent = node.parent;
    to.first_child = node.first_child;
    to.next_sibling = node.next_sibling;
    to.depth = node.depth;
    to.category = node.category;
    to.calls = node.calls;
    to.ticks = node.ticks;
    to.ticks_at_reset = node.ticks_at_reset;
    to.longest = node.longest;
    to.bytes = node.bytes;
    to.resident = node.resident;
    to.device = node.device;
    to.peak = node.peak;
    to.device_seconds = node.device_seconds;
    to.device_seconds_at_reset = node.device_seconds_at_reset;
    to.open_since = since;
    to.open_argument = argument;
  }
  out.counter_totals = counter_totals_;
  out.dropped = dropped_;
  if (what == What::everything) {
    out.events = events_;
    out.instants = instants_;
    out.counters = counters_;
  }
  return out;
}

ThreadRecord::Standing ThreadRecord::standing_now() {
  const std::lock_guard guard(lock_);
  const int32_t innermost = current_.load(std::memory_order_relaxed);
  Standing out;
  if (innermost > 0) out.innermost = nodes_[static_cast<size_t>(innermost)].category;
  for (int32_t i = innermost; i > 0; i = nodes_[static_cast<size_t>(i)].parent) {
    Node& node = nodes_[static_cast<size_t>(i)];
    const int64_t argument = std::atomic_ref(node.open_argument).load(std::memory_order_relaxed);
    std::string step = node.name;
    if (argument != no_argument) step += " " + std::to_string(argument);
    out.path = out.path.empty() ? step : step + " > " + out.path;
    out.io = out.io || node.category == Category::io;
  }
  return out;
}

void ThreadRecord::set_name(std::string name) {
  const std::lock_guard guard(lock_);
  name_ = std::move(name);
}

void ThreadRecord::begin_phase(const Memory& host, const Memory& device) {
  const std::lock_guard guard(lock_);
  Node& node = nodes_[static_cast<size_t>(current_.load(std::memory_order_relaxed))];
  node.resident = std::max(node.resident, host.resident);
  node.peak = std::max(node.peak, host.peak);
  node.device = std::max(node.device, device.resident);
  node.peak_before = host.peak;
  node.device_peak_before = device.peak;
}

void ThreadRecord::end_phase(const Memory& host, const Memory& device) {
  const std::lock_guard guard(lock_);
  Node& node = nodes_[static_cast<size_t>(current_.load(std::memory_order_relaxed))];
  node.resident = std::max(node.resident, host.peak > node.peak_before ? host.peak : host.resident);
  node.peak = std::max(node.peak, host.peak);
  node.device =
      std::max(node.device, device.peak > node.device_peak_before ? device.peak : device.resident);
}

void ThreadRecord::reset_phases() {
  const std::lock_guard guard(lock_);
  for (Node& node : nodes_) {
    node.ticks_at_reset = node.ticks;
    node.device_seconds_at_reset = node.device_seconds;
  }
}

void ThreadRecord::add_device_seconds(int32_t node, double seconds) {
  const std::lock_guard guard(lock_);
  nodes_[static_cast<size_t>(node)].device_seconds += seconds;
}

namespace {

thread_local ThreadRecord* this_record = nullptr;

// Gives the record back when its thread ends; the next new thread goes on in it.
struct Release {
  ThreadRecord* record = nullptr;
  ~Release() {
    if (record) record->in_use = false;
    this_record = nullptr;
  }
};
thread_local Release release;

bool is_main_thread() { return gettid() == getpid(); }

}  // namespace

Recorder& Recorder::instance() {
  static Recorder* const recorder = new Recorder;  // never destroyed, see the class
  return *recorder;
}

ThreadRecord& Recorder::main_thread() {
  const std::lock_guard guard(mutex_);
  if (threads_.empty()) {
    threads_.push_back(std::make_unique<ThreadRecord>(0));
    threads_[0]->kernel_id = getpid();
    threads_[0]->set_name("main");
  }
  return *threads_[0];
}

ThreadRecord& Recorder::register_thread() {
  ThreadRecord* record = &main_thread();
  if (!is_main_thread()) {
    const std::lock_guard guard(mutex_);
    const auto idle = std::find_if(threads_.begin() + 1, threads_.end(),
                                   [](const auto& t) { return !t->in_use; });
    if (idle != threads_.end()) {
      record = idle->get();
    } else {
      record =
          threads_.emplace_back(std::make_unique<ThreadRecord>(static_cast<int>(threads_.size())))
              .get();
    }
    record->in_use = true;
    record->kernel_id = gettid();
    record->set_name("thread " + std::to_string(record->id()));
    release.record = record;
  }
  this_record = record;
  return *record;
}

ThreadRecord& Recorder::this_thread() { return this_record ? *this_record : register_thread(); }

ThreadRecord& Recorder::device_lane() {
  main_thread();
  const std::lock_guard guard(mutex_);
  if (device_lane_ == nullptr) {
    device_lane_ =
        threads_.emplace_back(std::make_unique<ThreadRecord>(static_cast<int>(threads_.size())))
            .get();
    device_lane_->set_name("GPU");  // in_use: no thread takes it over
  }
  return *device_lane_;
}

std::vector<ThreadRecord*> Recorder::threads() {
  const std::lock_guard guard(mutex_);
  std::vector<ThreadRecord*> out;
  for (const auto& thread : threads_) out.push_back(thread.get());
  return out;
}

void Recorder::clear() {
  for (ThreadRecord* thread : threads()) thread->clear();
  device.set(nullptr);  // its marks would come after what they mark is forgotten
  device_wait = device_wait_taken = 0;
}

}  // namespace trireme::trace
