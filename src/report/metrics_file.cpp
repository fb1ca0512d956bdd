#include "trireme/report/metrics_file.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/text.hpp"
#include "trireme/report/iteration_metrics.hpp"

namespace trireme::report {
namespace {

constexpr size_t most_waiting = size_t{16} << 20;

constexpr int label_width = 9;

// Three decimals, where they fit and tell the levels of the plot apart.
bool plain_labels(double low, double high) {
  const auto fits = [](double level) {
    return std::snprintf(nullptr, 0, "%.3f", level) <= label_width;
  };
  return fits(low) && fits(high) && high - low >= 0.01;
}

// Bytes of its whole lines.
int64_t end_of_lines(const std::filesystem::path& path) {
  const std::string content = base::read_file(path);
  const size_t last = content.rfind('\n');
  return last == std::string::npos ? 0 : static_cast<int64_t>(last) + 1;
}

// Whether a line of the file may have a reward metric: most runs have none, and need no parsing.
bool may_have_reward_metric(std::string_view line) {
  const std::string key = std::string("\"") + reward_prefix;
  for (size_t at = 0; (at = line.find(key, at)) != std::string_view::npos; at += key.size()) {
    if (line.find('/', at) < line.find('"', at + 1)) return true;
  }
  return false;
}

}  // namespace

std::vector<std::pair<std::string, std::vector<double>>> reward_metric_curves(
    const std::filesystem::path& path) {
  const base::FileWork work{"read", path};
  std::vector<std::pair<std::string, std::vector<double>>> curves;
  std::map<std::string, size_t> places;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!may_have_reward_metric(line)) continue;
    const auto json = nlohmann::ordered_json::parse(line, nullptr, false);
    if (!json.is_object()) continue;  // cut off
    for (const auto& [name, value] : json.items()) {
      if (!is_reward_metric(name) || !value.is_number()) continue;
      const auto [place, fresh] = places.emplace(name, curves.size());
      if (fresh) curves.emplace_back(name, std::vector<double>{});
      curves[place->second].second.push_back(value.get<double>());
    }
  }
  return curves;
}

std::string text_plot(const std::vector<double>& values, const std::string& title, int width,
                      int height, PlotSpan span) {
  std::vector<double> finite;
  for (const double value : values) {
    if (std::isfinite(value)) finite.push_back(value);
  }
  if (finite.size() < 2) return "";
  auto [low, high] = std::pair(*std::min_element(finite.begin(), finite.end()),
                               *std::max_element(finite.begin(), finite.end()));
  if (high - low < 1e-12) high = low + std::max(1.0, 1e-6 * std::abs(low));
  const int columns = std::min<int>(width, static_cast<int>(finite.size()));
  std::vector<std::string> rows(static_cast<size_t>(height),
                                std::string(static_cast<size_t>(columns), ' '));
  for (int c = 0; c < columns; ++c) {  // a column shows the mean of its share of the values
    const size_t first = finite.size() * static_cast<size_t>(c) / static_cast<size_t>(columns);
    const size_t last = std::max(
        first + 1, finite.size() * (static_cast<size_t>(c) + 1) / static_cast<size_t>(columns));
    double sum = 0;
    for (size_t i = first; i < last; ++i) sum += finite[i];
    const double level = (sum / static_cast<double>(last - first) - low) / (high - low);
    const int row =
        height - 1 - std::clamp(static_cast<int>(std::lround(level * (height - 1))), 0, height - 1);
    rows[static_cast<size_t>(row)][static_cast<size_t>(c)] = '*';
  }
  const bool plain = plain_labels(low, high);
  std::string out = title + "\n";
  for (int r = 0; r < height; ++r) {
    const double level = high - (high - low) * r / std::max(1, height - 1);
    std::array<char, 32> label{};
    std::snprintf(label.data(), label.size(), plain ? "%*.3f" : "%*.2e", label_width, level);
    out += base::text(r % 3 == 0 || r == height - 1 ? label.data() : "         ", " |",
                      rows[static_cast<size_t>(r)], "\n");
  }
  const std::string first = base::text(span.first),
                    last =
                        base::text(span.last > 0 ? static_cast<size_t>(span.last) : finite.size());
  const int between = columns - static_cast<int>(first.size() + last.size());
  out += base::text("          +", std::string(static_cast<size_t>(columns), '-'), "\n           ",
                    first, std::string(static_cast<size_t>(std::max(1, between)), ' '), last, "\n");
  return out;
}

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t cursor)
    : path_(path), cursor_(cursor) {
  const base::FileWork work{"open", path};
  file_ = base::FileDescriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!file_.valid()) base::throw_errno(errno, "open", path);
  const off_t end = ::lseek(file_.get(), 0, SEEK_END);
  cursor_ = end < cursor ? end_of_lines(path) : cursor;
  if (end == 0 && cursor > 0) {
    log::info(base::text(path.string(),
                         " is new and begins behind the checkpoint: the lines of the iterations "
                         "before stand in the folder of the run that made them"));
  } else if (end < cursor) {
    log::warning(base::text(path.string(), " has ", end, " bytes where the checkpoint remembers ",
                            cursor, ": lines of ", cursor - cursor_,
                            " bytes are lost (cut off, or the file is an older copy); the run goes "
                            "on behind its last whole line"));
  }
  if (::ftruncate(file_.get(), cursor_) != 0) base::throw_errno(errno, "truncate", path);
  if (::lseek(file_.get(), cursor_, SEEK_SET) < 0) base::throw_errno(errno, "seek in", path);
}

void MetricsFile::append(const std::string& line) {
  waiting_ += line + "\n";
  write_waiting();
}

void MetricsFile::write_waiting() {
  if (waiting_.empty()) return;
  const base::FileWork work{"write", path_};
  try {
    base::write_all(file_.get(), waiting_, path_);
  } catch (const UserError&) {
    // Half a line would spoil the next one. The lines are kept and written with a later one.
    if (::ftruncate(file_.get(), cursor_) == 0) ::lseek(file_.get(), cursor_, SEEK_SET);
    while (waiting_.size() > most_waiting)
      waiting_.erase(0,
                     waiting_.find('\n') + 1);  // a disk that stays full must not fill the memory
    throw;
  }
  cursor_ += static_cast<int64_t>(waiting_.size());
  waiting_.clear();
}

void MetricsFile::sync() {
  try {
    write_waiting();
  } catch (const UserError&) {  // the cursor still covers earlier lines
    to_device();
    throw;
  }
  to_device();
}

void MetricsFile::to_device() {
  const base::FileWork work{"sync", path_};
  if (::fdatasync(file_.get()) != 0) base::throw_errno(errno, "sync", path_);
}

}  // namespace trireme::report
