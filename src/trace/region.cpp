#include "trireme/trace/region.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <new>
#include <utility>

#include "trace/clock.hpp"
#include "trace/recorder.hpp"
#include "trireme/base/fault_point.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/text.hpp"
#include "trireme/trace/activity.hpp"
#include "trireme/trace/device_wait.hpp"

namespace trireme::trace {

namespace {

constexpr int32_t not_recorded = -2;
std::atomic<uint64_t> changed_on_main{0};  // regions begun or ended

std::atomic<uint64_t> collectives{0};            // begun or ended, by any thread
std::atomic<ThreadRecord*> waited_for{nullptr};  // by the main thread

struct Totals {
  std::mutex mutex;
  std::map<std::string, int64_t> by_name;
};
Totals& totals() {
  static Totals one;
  return one;
}

Memory device_memory() {
  const auto source = Recorder::instance().device_memory.load();
  return source == nullptr ? Memory{} : source();
}

// Of the main thread: where the exception came from that it is unwinding, or has just caught. Kept
// until a region begins, or ends as it should.
struct Failed {
  bool unwinding = false;
  std::string where;
};
Failed failed;

void left_by_exception(ThreadRecord& record) {
  if (record.id() != 0 || failed.unwinding) return;
  failed.unwinding = true;
  try {
    failed.where = record.standing_now().path;
  } catch (const std::bad_alloc&) { failed.where.clear(); }
}

}  // namespace

uint64_t activity() {
  return changed_on_main.load(std::memory_order_relaxed) +
         collectives.load(std::memory_order_relaxed) + base::ticks_so_far();
}

namespace {

Standing standing_of(ThreadRecord& thread) {
  const auto now = thread.standing_now();
  Standing out{
      .where = now.path,
      .waiting = now.innermost == Category::communication || now.innermost == Category::wait,
      .io = now.io,
      .call = {}};
  if (const Call& call = thread.call; call.depth.load() > 0) {
    out.waiting = true;
    out.call = base::text(call.name.load(), " of ",
                          base::human_bytes(static_cast<double>(call.bytes.load())), " on ",
                          call.communicator.load(), ", the ", call.number.load(), "th");
  } else if (std::string file = base::file_work_of(thread.kernel_id); !file.empty()) {
    out.waiting = false;
    out.io = true;
    out.call = std::move(file);
  }
  return out;
}

}  // namespace

Standing standing() {
  Standing out = standing_of(Recorder::instance().main_thread());
  ThreadRecord* const other = waited_for.load();
  if (other == nullptr) return out;
  const Standing theirs = standing_of(*other);
  if (!theirs.where.empty()) out.where += " > " + theirs.where;
  out.waiting = theirs.waiting;
  out.io = out.io || theirs.io;
  out.call = theirs.call;
  return out;
}

int this_thread() { return Recorder::instance().this_thread().id(); }

WaitForThread::WaitForThread(int thread) : counts_(thread >= 0 && this_thread() == 0) {
  if (counts_) waited_for = Recorder::instance().threads().at(static_cast<size_t>(thread));
}

WaitForThread::~WaitForThread() {
  if (counts_) waited_for = nullptr;
}

Collective::Collective(const char* name, const char* communicator, int64_t bytes) {
  Call& call = Recorder::instance().this_thread().call;
  if (call.depth.fetch_add(1, std::memory_order_relaxed) > 0) return;
  call.name.store(name, std::memory_order_relaxed);
  call.communicator.store(communicator, std::memory_order_relaxed);
  call.bytes.store(bytes, std::memory_order_relaxed);
  call.number.fetch_add(1, std::memory_order_relaxed);
  collectives.fetch_add(1, std::memory_order_relaxed);
}

Collective::~Collective() {
  Recorder::instance().this_thread().call.depth.fetch_sub(1, std::memory_order_relaxed);
  collectives.fetch_add(1, std::memory_order_relaxed);
}

const char* to_string(Category category) {
  static constexpr const char* names[] = {"phase", "work", "communication", "wait", "io", "kernel"};
  return names[static_cast<size_t>(category)];
}

Region::Region(Name name, int64_t argument, Category category, int64_t bytes)
    : name_(name.c_str()),
      begin_(0),
      argument_(argument),
      bytes_(bytes),
      parent_(not_recorded),
      category_(category) {
  Recorder& recorder = Recorder::instance();
  if (category == Category::kernel && !recorder.kernels_on.load(std::memory_order_relaxed)) return;
  if (const Forward* to = forward.load(std::memory_order_relaxed)) to->push(name_);
  ThreadRecord& record = recorder.this_thread();
  parent_ = record.enter(name_, category_, argument_, begin_);
  if (category_ == Category::phase) {
    record.begin_phase(host_memory(), device_memory());
    if (record.id() == 0) recorder.device.begin(record, name_, argument_);
  }
  if (record.id() == 0) {
    changed_on_main.fetch_add(1, std::memory_order_relaxed);
    if (std::uncaught_exceptions() == 0) failed.unwinding = false;
  }
  try {
    base::fault_point(name_);
  } catch (...) {  // no destructor will end this region
    left_by_exception(record);
    end();
    throw;
  }
}

Region::~Region() {
  if (parent_ == not_recorded) return;
  if (std::uncaught_exceptions() > 0) {
    left_by_exception(Recorder::instance().this_thread());
  } else if (Recorder::instance().this_thread().id() == 0) {
    failed.unwinding = false;
  }
  end();
}

void Region::end() {
  ThreadRecord& record = Recorder::instance().this_thread();
  if (record.id() == 0) changed_on_main.fetch_add(1, std::memory_order_relaxed);
  if (category_ == Category::phase) {
    record.end_phase(host_memory(), device_memory());
    if (record.id() == 0) Recorder::instance().device.end(record);
  }
  record.leave(parent_, Event{name_, begin_, ticks(), argument_, bytes_, 0, category_});
  if (const Forward* to = forward.load(std::memory_order_relaxed)) to->pop();
}

void count(Name name, int64_t more) {
  const std::lock_guard lock(totals().mutex);
  totals().by_name[name.c_str()] += more;
}

std::map<std::string, int64_t> counts() {
  const std::lock_guard lock(totals().mutex);
  return totals().by_name;
}

void add_device_wait(double seconds) { Recorder::instance().device_wait += seconds; }
double device_wait() { return Recorder::instance().device_wait; }
double take_device_wait() {
  const double now = device_wait();
  return now - std::exchange(Recorder::instance().device_wait_taken, now);
}

void counter(Name name, double value) {
  Recorder::instance().this_thread().add_counter(name.c_str(), value);
}
void instant(Name name, int64_t argument) {
  Recorder::instance().this_thread().add_instant(name.c_str(), argument);
}
void name_thread(const char* name) { Recorder::instance().this_thread().set_name(name); }
void record_events(bool on) { Recorder::instance().events_on = on; }
void record_kernels(bool on) { Recorder::instance().kernels_on = on; }
void set_capacity(size_t events_per_thread) {
  Recorder::instance().capacity = events_per_thread < 2 ? 2 : events_per_thread;
}
void set_device_memory_source(Memory (*source)()) { Recorder::instance().device_memory = source; }
std::string where() { return Recorder::instance().main_thread().standing_now().path; }
std::string where_it_failed() { return failed.unwinding ? failed.where : where(); }

void clear() {
  Recorder::instance().clear();
  const std::lock_guard lock(totals().mutex);
  totals().by_name.clear();
}

std::map<std::string, double> phase_seconds() {
  const auto copy = Recorder::instance().this_thread().copy(ThreadRecord::What::totals);
  const TickScale scale = TickScale::now();
  std::map<std::string, double> out;
  for (const Node& node : copy.nodes) {
    if (node.category == Category::phase && node.ticks > node.ticks_at_reset)
      out[node.name] += scale.duration(node.ticks - node.ticks_at_reset);
  }
  return out;
}

std::map<std::string, PhaseMemory> phase_memory() {
  std::map<std::string, PhaseMemory> out;
  for (const Node& node :
       Recorder::instance().this_thread().copy(ThreadRecord::What::totals).nodes) {
    if (node.category != Category::phase || node.depth < 0) continue;
    PhaseMemory& of_name = out[node.name];
    of_name = {std::max(of_name.host, node.resident), std::max(of_name.device, node.device)};
  }
  return out;
}

void reset_phases() { Recorder::instance().this_thread().reset_phases(); }

}  // namespace trireme::trace
