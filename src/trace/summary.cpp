// One rank's totals, and their form on the wire.
#include <cstring>

#include "trace/clock.hpp"
#include "trace/recorder.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/trace/perfetto.hpp"
#include "trireme/trace/table.hpp"

namespace trireme::trace {

namespace {

// Walks a copy of the main thread's call tree, depth first.
class Walk {
 public:
  Walk(const ThreadRecord::Copy& copy, Summary& out) : nodes_(copy.nodes), out_(out), now_(ticks()), scale_(TickScale::now()) {}

  void run() { children(0, "", Exposed{}); }

 private:
  // Whether a region of the kind lies around this one: only the outermost counts.
  struct Exposed {
    bool communication = false, wait = false, io = false;
  };

  void children(int32_t parent, const std::string& prefix, Exposed around) {
    for (int32_t i = nodes_[static_cast<size_t>(parent)].first_child; i >= 0; i = nodes_[static_cast<size_t>(i)].next_sibling) {
      visit(i, prefix, around);
    }
  }

  void visit(int32_t index, const std::string& prefix, Exposed around) {
    const Node& node = nodes_[static_cast<size_t>(index)];
    const uint64_t open = node.open_since > 0 && now_ > node.open_since ? now_ - node.open_since : 0;
    RegionTotal total;
    total.path = prefix + node.name;
    total.category = node.category;
    total.calls = node.calls + (node.open_since > 0 ? 1 : 0);
    total.seconds = scale_.duration(node.ticks + open);
    total.longest = scale_.duration(std::max(node.longest, open));
    total.bytes = node.bytes;
    total.resident = node.resident;
    total.peak = node.peak;
    add(Category::communication, around.communication, out_.communication, total);
    add(Category::wait, around.wait, out_.wait, total);
    add(Category::io, around.io, out_.io, total);
    const std::string path = total.path + "/";
    out_.regions.push_back(std::move(total));
    children(index, path, around);
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

class Writer {
 public:
  void number(int64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void number(double value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void text(std::string_view value) {
    number(static_cast<int64_t>(value.size()));
    bytes_ += value;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  int64_t integer() { return raw<int64_t>(); }
  double number() { return raw<double>(); }
  std::string text() { return std::string(take(count())); }
  // A number of things that each take at least one byte.
  size_t count() {
    const int64_t n = integer();
    VALIDATE(n >= 0 && static_cast<uint64_t>(n) <= bytes_.size(), ExitCode::bad_data, "trace summary: malformed (a length of ", n,
             " with ", bytes_.size(), " bytes left)");
    return static_cast<size_t>(n);
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view take(size_t n) {
    VALIDATE(n <= bytes_.size(), ExitCode::bad_data, "trace summary: cut short");
    const std::string_view part = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return part;
  }
  template <class T>
  T raw() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view bytes_;
};

constexpr int64_t summary_format = 1;

RegionTotal read_region(Reader& in) {
  RegionTotal r;
  r.path = in.text();
  const int64_t category = in.integer();
  VALIDATE(category >= 0 && category <= static_cast<int64_t>(Category::kernel), ExitCode::bad_data,
           "trace summary: unknown category ", category);
  r.category = static_cast<Category>(category);
  r.calls = in.integer();
  r.seconds = in.number();
  r.longest = in.number();
  r.bytes = in.integer();
  r.resident = in.integer();
  r.peak = in.integer();
  return r;
}

}  // namespace

Summary summarize(int rank, std::string role) {
  Recorder& recorder = Recorder::instance();
  Summary out;
  out.rank = rank;
  out.role = std::move(role);
  out.seconds = base::monotonic_seconds() - start_seconds();
  const auto main = recorder.main_thread().copy(ThreadRecord::What::totals);
  Walk(main, out).run();
  for (ThreadRecord* thread : recorder.threads()) {
    const auto copy = thread->copy(ThreadRecord::What::totals);
    out.dropped += copy.dropped;
    for (const CounterTotal& total : copy.counter_totals) {
      const auto [it, is_new] = out.counter_max.emplace(total.name, total.max);
      if (!is_new) it->second = std::max(it->second, total.max);
    }
  }
  out.host_peak = host_memory().peak;
  if (auto* source = recorder.device_peak.load()) out.device_peak = source();
  return out;
}

std::string Summary::to_bytes() const {
  Writer out;
  out.number(summary_format);
  out.number(int64_t{rank});
  out.text(role);
  for (const double value : {seconds, communication, wait, io}) out.number(value);
  for (const int64_t value : {host_peak, device_peak, dropped}) out.number(value);
  out.number(static_cast<int64_t>(regions.size()));
  for (const RegionTotal& r : regions) {
    out.text(r.path);
    out.number(static_cast<int64_t>(r.category));
    out.number(r.calls);
    out.number(r.seconds);
    out.number(r.longest);
    for (const int64_t value : {r.bytes, r.resident, r.peak}) out.number(value);
  }
  out.number(static_cast<int64_t>(counter_max.size()));
  for (const auto& [name, value] : counter_max) {
    out.text(name);
    out.number(value);
  }
  return out.take();
}

Summary Summary::from_bytes(std::string_view bytes) {
  Reader in(bytes);
  Summary out;
  const int64_t format = in.integer();
  VALIDATE(format == summary_format, ExitCode::bad_data, "trace summary: format ", format, " is not known");
  out.rank = static_cast<int>(in.integer());
  out.role = in.text();
  for (double* value : {&out.seconds, &out.communication, &out.wait, &out.io}) *value = in.number();
  for (int64_t* value : {&out.host_peak, &out.device_peak, &out.dropped}) *value = in.integer();
  for (size_t i = in.count(); i > 0; --i) out.regions.push_back(read_region(in));
  for (size_t i = in.count(); i > 0; --i) {
    std::string name = in.text();
    out.counter_max[std::move(name)] = in.number();
  }
  VALIDATE(in.at_end(), ExitCode::bad_data, "trace summary: bytes are left over");
  return out;
}

}  // namespace trireme::trace
