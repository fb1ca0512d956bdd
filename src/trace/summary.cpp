// One rank's totals, and their form on the wire.
#include <algorithm>
#include <utility>

#include "trace/clock.hpp"
#include "trace/recorder.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/base/wire.hpp"
#include "trireme/trace/perfetto.hpp"
#include "trireme/trace/table.hpp"

namespace trireme::trace {

namespace {

using Counters = std::vector<std::pair<std::string, double>>;

// Walks a copy of the main thread's call tree, depth first.
class Walk {
 public:
  Walk(const ThreadRecord::Copy& copy, Summary& out)
      : nodes_(copy.nodes), out_(out), now_(ticks()), scale_(TickScale::now()) {}

  void run() { out_.wait = children(0, "", Exposed{}); }

 private:
  // Whether a region of the kind lies around this one: only the outermost counts. Work that a rank
  // does on while it waits for others is not waiting.
  struct Exposed {
    bool communication = false, wait = false, io = false;
  };

  // Seconds of waiting below, less those of work within what is waiting around it.
  double children(int32_t parent, const std::string& prefix, Exposed around) {
    double wait = 0;
    for (int32_t i = nodes_[static_cast<size_t>(parent)].first_child; i >= 0;
         i = nodes_[static_cast<size_t>(i)].next_sibling) {
      wait += visit(i, prefix, around);
    }
    return wait;
  }

  double visit(int32_t index, const std::string& prefix, Exposed around) {
    const Node& node = nodes_[static_cast<size_t>(index)];
    const uint64_t open =
        node.open_since > 0 && now_ > node.open_since ? now_ - node.open_since : 0;
    RegionTotal total;
    total.path = prefix + node.name;
    total.category = node.category;
    total.calls = node.calls + (node.open_since > 0 ? 1 : 0);
    total.seconds = scale_.duration(node.ticks + open);
    total.longest = scale_.duration(std::max(node.longest, open));
    total.bytes = node.bytes;
    total.resident = node.resident;
    total.peak = node.peak;
    total.device = node.device;
    total.device_seconds = node.device_seconds;
    add(Category::communication, around.communication, out_.communication, total);
    add(Category::io, around.io, out_.io, total);
    const bool was_waiting =
        std::exchange(around.wait, total.category == Category::wait ||
                                       (around.wait && total.category == Category::communication));
    const std::string path = total.path + "/";
    const double seconds = total.seconds;
    const size_t at = out_.regions.size();
    out_.regions.push_back(std::move(total));
    const double below = children(index, path, around);
    out_.regions[at].wait = (around.wait ? seconds : 0) + below;
    return out_.regions[at].wait - (was_waiting ? seconds : 0);
  }

  static void add(Category kind, bool& inside, double& sum, const RegionTotal& total) {
    if (total.category != kind || inside) return;
    inside = true;
    sum += total.seconds;
  }

  const std::vector<Node>& nodes_;
  Summary& out_;
  uint64_t now_;
  TickScale scale_;
};

}  // namespace

Summary summarize(int rank, std::string role) {
  Recorder& recorder = Recorder::instance();
  Summary out;
  out.rank = rank;
  out.role = std::move(role);
  out.seconds = base::monotonic_seconds() - start_seconds();
  const auto main = recorder.main_thread().copy(ThreadRecord::What::totals);
  Walk(main, out).run();
  out.communication += recorder.device_wait;
  for (ThreadRecord* thread : recorder.threads()) {
    const auto copy = thread->copy(ThreadRecord::What::totals);
    out.dropped += copy.dropped;
    for (const CounterTotal& total : copy.counter_totals) {
      const auto [it, is_new] = out.counter_max.emplace(total.name, total.max);
      if (!is_new) it->second = std::max(it->second, total.max);
    }
  }
  out.host_peak = host_memory().peak;
  if (auto* source = recorder.device_memory.load()) out.device_peak = source().peak;
  return out;
}

Waited waited_in(const std::string& name) {
  const auto main = Recorder::instance().main_thread().copy(ThreadRecord::What::totals);
  Summary all;
  Walk(main, all).run();
  const auto found = std::ranges::find(all.regions, name, &RegionTotal::path);
  return found == all.regions.end() ? Waited{} : Waited{found->seconds, found->wait};
}

std::string Summary::to_bytes() const {
  const Counters counters(counter_max.begin(), counter_max.end());
  return base::WireWriter()
      .put(rank)
      .put(role)
      .put(seconds)
      .put(communication)
      .put(wait)
      .put(io)
      .put(host_peak)
      .put(device_peak)
      .put(dropped)
      .put(regions)
      .put(counters)
      .take();
}

Summary Summary::from_bytes(std::string_view bytes) {
  base::WireReader in(bytes, "trace summary");
  Summary out;
  in.take(out.rank);
  in.take(out.role);
  for (double* value : {&out.seconds, &out.communication, &out.wait, &out.io}) in.take(*value);
  for (int64_t* value : {&out.host_peak, &out.device_peak, &out.dropped}) in.take(*value);
  in.take(out.regions);
  for (const RegionTotal& region : out.regions) {
    VALIDATE(region.category <= Category::kernel, ExitCode::bad_data,
             "trace summary: unknown category ", static_cast<int>(region.category));
  }
  for (auto& [name, value] : in.take<Counters>()) out.counter_max[std::move(name)] = value;
  in.must_be_done();
  return out;
}

}  // namespace trireme::trace
