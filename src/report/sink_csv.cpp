// metrics.csv: a column per metric, a row per iteration.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>

#include "report/grown_file.hpp"
#include "report/sinks.hpp"

namespace trireme::report {
namespace {

// A field as RFC 4180 writes it.
std::string field_of(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::string digits(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

class CsvSink final : public MetricsSink {
 public:
  explicit CsvSink(const SinkFacts& facts) : run_(facts.run), file_(facts.run / "metrics.csv") {}

  void add(const MetricLine& line) override {
    const size_t known = names_.size();
    for (const auto& [name, value] : line.values) {
      if (std::ranges::find(names_, name) == names_.end()) names_.push_back(name);
    }
    if (names_.size() == known && !stale_) return file_.append(row_of(line));
    // The header grows when a metric comes that there was not before, an evaluation for instance.
    stale_ = true;
    std::string text = header();
    LineFollower(run_ / "metrics.jsonl").read([&](std::string_view earlier) {
      const std::optional<MetricLine> parsed = parse_metric_line(earlier);
      if (parsed && parsed->iteration < line.iteration) text += row_of(*parsed);
    });
    file_ = GrownFile(file_.path());
    file_.append(text + row_of(line));
    stale_ = false;
  }

  void end(int64_t) override {}

 private:
  std::string header() const {
    std::string out = "iteration,time";
    for (const std::string& name : names_) out += "," + field_of(name);
    return out + "\n";
  }

  std::string row_of(const MetricLine& line) const {
    std::string out = std::to_string(line.iteration) + "," + digits(line.time);
    for (const std::string& name : names_) {
      const double value = line.get(name);
      out += "," + (std::isnan(value) ? std::string() : digits(value));
    }
    return out + "\n";
  }

  std::filesystem::path run_;
  GrownFile file_;
  std::vector<std::string> names_;
  bool stale_ = true;  // the file's header is older than `names_`
};

}  // namespace

std::unique_ptr<MetricsSink> make_csv_sink(const SinkFacts& facts) {
  return std::make_unique<CsvSink>(facts);
}

}  // namespace trireme::report
