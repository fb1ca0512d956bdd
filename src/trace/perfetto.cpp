#include "trireme/trace/perfetto.hpp"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>

#include "trace/clock.hpp"
#include "trace/recorder.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/base/text.hpp"

namespace trireme::trace {

namespace {

const double process_start = base::monotonic_seconds();

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned char>(c));
      out += escape.data();
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Renders the events of one rank. Times are whole nanoseconds, rounded the same way for begin and
// end, so slices stay nested.
class Renderer {
 public:
  explicit Renderer(const RankIdentity& identity)
      : identity_(identity), scale_(TickScale::now()), now_(ticks()) {}

  std::string run() {
    const std::string name = base::text("rank ", identity_.rank,
                                        identity_.roles.empty() ? "" : " (" + identity_.roles + ")",
                                        identity_.host.empty() ? "" : " on " + identity_.host);
    metadata("process_name", 0, json_text(name));
    line(base::text(R"({"ph":"M","name":"process_sort_index","pid":)", identity_.rank,
                    R"(,"args":{"sort_index":)", identity_.rank, "}}"));
    for (ThreadRecord* thread : Recorder::instance().threads())
      render(thread->copy(ThreadRecord::What::everything));
    return std::move(out_);
  }

 private:
  void render(ThreadRecord::Copy copy) {
    metadata("thread_name", copy.id, json_text(copy.name));
    add_open_regions(copy);
    std::sort(copy.events.begin(), copy.events.end(), [](const Event& a, const Event& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.depth < b.depth;
    });
    for (const Event& event : copy.events) slice(event, copy.id);
    for (const Instant& instant : copy.instants) {
      line(base::text(R"({"ph":"i","s":"t","name":)", json_text(instant.name), place(copy.id),
                      R"(,"ts":)", microseconds(nanoseconds(instant.at)),
                      arguments(instant.argument, 0), "}"));
    }
    for (const CounterSample& sample : copy.counters) counter(sample);
  }

  // A checkpoint's trace is written from inside regions: show them up to now.
  void add_open_regions(ThreadRecord::Copy& copy) const {
    for (const Node& node : copy.nodes) {
      if (node.open_since == 0 || node.open_since > now_) continue;
      copy.events.push_back(
          {node.name, node.open_since, now_, node.open_argument, 0, node.depth, node.category});
    }
  }

  void slice(const Event& event, int thread) {
    const int64_t begin = nanoseconds(event.begin);
    const int64_t end = nanoseconds(event.end);
    line(base::text(R"({"ph":"X","name":)", json_text(event.name), R"(,"cat":")",
                    to_string(event.category), '"', place(thread), R"(,"ts":)", microseconds(begin),
                    R"(,"dur":)", microseconds(end - begin), arguments(event.argument, event.bytes),
                    "}"));
  }

  void counter(const CounterSample& sample) {
    if (!std::isfinite(sample.value)) return;  // JSON has no such number
    std::array<char, 40> value{};
    std::snprintf(value.data(), value.size(), "%.9g", sample.value);
    line(base::text(R"({"ph":"C","name":)", json_text(sample.name), R"(,"pid":)", identity_.rank,
                    R"(,"ts":)", microseconds(nanoseconds(sample.at)), R"(,"args":{"value":)",
                    value.data(), "}}"));
  }

  static std::string arguments(int64_t argument, int64_t bytes) {
    if (argument == no_argument && bytes == 0) return "";
    std::string out = R"(,"args":{)";
    if (argument != no_argument) out += base::text(R"("n":)", argument);
    if (bytes != 0) out += base::text(argument != no_argument ? "," : "", R"("bytes":)", bytes);
    return out + "}";
  }

  void metadata(std::string_view what, int thread, const std::string& value) {
    line(base::text(R"({"ph":"M","name":")", what, '"', place(thread), R"(,"args":{"name":)", value,
                    "}}"));
  }

  std::string place(int thread) const {
    return base::text(R"(,"pid":)", identity_.rank, R"(,"tid":)", tid(thread));
  }
  // Perfetto joins tracks of equal tid in different processes when a tid is not unique.
  int64_t tid(int thread) const { return int64_t{identity_.rank} * 1000 + thread + 1; }

  int64_t nanoseconds(uint64_t at) const {
    return static_cast<int64_t>(
        std::floor((scale_.seconds(at) + identity_.clock_offset - identity_.origin) * 1e9));
  }
  static std::string microseconds(int64_t nanoseconds) {
    std::array<char, 40> buffer{};
    const char* sign = nanoseconds < 0 ? "-" : "";
    const int64_t magnitude = std::abs(nanoseconds);
    std::snprintf(buffer.data(), buffer.size(), "%s%" PRId64 ".%03d", sign, magnitude / 1000,
                  static_cast<int>(magnitude % 1000));
    return buffer.data();
  }

  void line(const std::string& text) {
    if (!out_.empty()) out_ += ",\n";
    out_ += text;
  }

  const RankIdentity& identity_;
  TickScale scale_;
  uint64_t now_;
  std::string out_;
};

}  // namespace

double start_seconds() { return process_start; }

std::string trace_events(const RankIdentity& identity) { return Renderer(identity).run(); }

std::string merge_trace(std::span<const std::string> fragments) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  bool first = true;
  for (const std::string& fragment : fragments) {
    if (fragment.empty()) continue;
    if (!first) out += ",\n";
    out += fragment;
    first = false;
  }
  return out + "\n]}\n";
}

}  // namespace trireme::trace
