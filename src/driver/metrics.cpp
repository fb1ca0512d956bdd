#include "driver/metrics.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <limits>

#include "trireme/base/text.hpp"
#include "trireme/data/jsonl.hpp"

namespace trireme::driver {
namespace {

constexpr size_t most_waiting = size_t{16} << 20;

template <class Map>
std::string object(const Map& map) {
  data::JsonObject out;
  for (const auto& [name, value] : map) out.add(name, value);
  return out.str();
}

// Rollout against training log-probs: one 0 where they are the same.
std::string mismatch_text(const IterationMetrics& metrics) {
  const double largest = metrics.get("mismatch_max");
  if (std::isnan(largest)) return "";
  if (largest == 0) return "  mismatch 0";
  std::array<char, 96> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "  mismatch max %.1e mean %.1e p99.9 %.1e kl %.1e", largest, metrics.get("mismatch_mean"),
                metrics.get("mismatch_p999"), metrics.get("mismatch_kl"));
  return buffer.data();
}

}  // namespace

void IterationMetrics::set(const std::string& name, double value) {
  const auto found = std::find_if(values.begin(), values.end(), [&](const auto& entry) { return entry.first == name; });
  if (found == values.end()) {
    values.emplace_back(name, value);
  } else {
    found->second = value;
  }
}

double IterationMetrics::get(const std::string& name) const {
  const auto found = std::find_if(values.begin(), values.end(), [&](const auto& entry) { return entry.first == name; });
  return found == values.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

std::string to_json(const IterationMetrics& metrics) {
  data::JsonObject line;
  line.add("iteration", metrics.iteration);
  for (const auto& [name, value] : metrics.values) line.add(name, value);
  line.add("tokens", metrics.tokens).add("version", metrics.version);
  line.add_json("seconds", object(metrics.seconds)).add_json("memory", object(metrics.memory));
  if (!metrics.threads.empty()) line.add_json("threads", object(metrics.threads));
  return line.str();
}

std::string to_console(const IterationMetrics& metrics, int64_t iterations) {
  std::string out = base::text("iteration ", metrics.iteration, "/", iterations);
  const auto show = [&](const char* name, const char* label, int decimals) {
    const double value = metrics.get(name);
    if (!std::isnan(value)) out += base::text("  ", label, " ", base::fixed(value, decimals));
  };
  show("reward", "reward", 3);
  show("loss", "loss", 4);
  show("kl", "kl", 4);
  show("policy_loss", "loss", 4);
  show("value_loss", "value", 4);
  show("clip_ratio", "clip", 3);
  show("response_length", "length", 1);
  show("grad_norm", "grad", 3);
  out += mismatch_text(metrics);
  const auto total = metrics.seconds.find("total");
  if (total != metrics.seconds.end() && total->second > 0) {
    out += base::text("  ", base::fixed(static_cast<double>(metrics.tokens) / total->second, 0), " tok/s  ",
                      base::human_seconds(total->second));
    std::string phases;
    for (const auto& [name, seconds] : metrics.seconds) {
      if (name != "total" && seconds >= 0.005) phases += base::text(phases.empty() ? "" : ", ", name, " ", base::fixed(seconds, 2));
    }
    if (!phases.empty()) out += base::text(" (", phases, ")");
  }
  return out;
}

std::string text_plot(const std::vector<double>& values, const std::string& title, int width, int height) {
  std::vector<double> finite;
  for (const double value : values) {
    if (std::isfinite(value)) finite.push_back(value);
  }
  if (finite.size() < 2) return "";
  auto [low, high] = std::pair(*std::min_element(finite.begin(), finite.end()), *std::max_element(finite.begin(), finite.end()));
  if (high - low < 1e-12) high = low + 1;
  const int columns = std::min<int>(width, static_cast<int>(finite.size()));
  std::vector<std::string> rows(static_cast<size_t>(height), std::string(static_cast<size_t>(columns), ' '));
  for (int c = 0; c < columns; ++c) {  // a column shows the mean of its share of the values
    const size_t first = finite.size() * static_cast<size_t>(c) / static_cast<size_t>(columns);
    const size_t last = std::max(first + 1, finite.size() * (static_cast<size_t>(c) + 1) / static_cast<size_t>(columns));
    double sum = 0;
    for (size_t i = first; i < last; ++i) sum += finite[i];
    const double level = (sum / static_cast<double>(last - first) - low) / (high - low);
    const int row = height - 1 - std::clamp(static_cast<int>(std::lround(level * (height - 1))), 0, height - 1);
    rows[static_cast<size_t>(row)][static_cast<size_t>(c)] = '*';
  }
  std::string out = title + "\n";
  for (int r = 0; r < height; ++r) {
    const double level = high - (high - low) * r / std::max(1, height - 1);
    std::array<char, 16> label{};
    std::snprintf(label.data(), label.size(), "%9.3f", level);
    out += base::text(r % 3 == 0 || r == height - 1 ? label.data() : "         ", " |", rows[static_cast<size_t>(r)], "\n");
  }
  out += base::text("          +", std::string(static_cast<size_t>(columns), '-'), "\n           1", 
                    std::string(static_cast<size_t>(std::max(1, columns - 1 - static_cast<int>(std::to_string(finite.size()).size()))), ' '),
                    finite.size(), "\n");
  return out;
}

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t cursor) : path_(path), cursor_(cursor) {
  file_ = base::FileDescriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!file_.valid()) base::throw_errno(errno, "open", path);
  const off_t end = ::lseek(file_.get(), 0, SEEK_END);
  cursor_ = std::min<int64_t>(cursor, end);
  if (::ftruncate(file_.get(), cursor_) != 0) base::throw_errno(errno, "truncate", path);
  if (::lseek(file_.get(), cursor_, SEEK_SET) < 0) base::throw_errno(errno, "seek in", path);
}

void MetricsFile::append(const std::string& line) {
  waiting_ += line + "\n";
  if (waiting_.size() > most_waiting) waiting_.erase(0, waiting_.find('\n') + 1);  // a disk that stays full must not fill the memory
  try {
    base::write_all(file_.get(), waiting_, path_);
  } catch (const UserError&) {
    // Half a line would spoil the next one. The lines are kept and written with a later one.
    if (::ftruncate(file_.get(), cursor_) == 0) ::lseek(file_.get(), cursor_, SEEK_SET);
    throw;
  }
  cursor_ += static_cast<int64_t>(waiting_.size());
  waiting_.clear();
}

void MetricsFile::sync() {
  if (::fdatasync(file_.get()) != 0) base::throw_errno(errno, "sync", path_);
}

}  // namespace trireme::driver
