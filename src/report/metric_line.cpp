#include "trireme/report/metric_line.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "trireme/base/files.hpp"
#include "trireme/base/progress.hpp"

namespace trireme::report {
namespace {

using Json = nlohmann::ordered_json;

void flatten(const std::string& prefix, const Json& object, MetricLine& line) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_number()) {
      line.values.emplace_back(prefix + name, value.get<double>());
    } else if (value.is_object()) {
      flatten(prefix + name + ".", value, line);
    }
  }
}

}  // namespace

double MetricLine::get(std::string_view name) const {
  const auto found =
      std::ranges::find_if(values, [&](const auto& entry) { return entry.first == name; });
  return found == values.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

std::optional<MetricLine> parse_metric_line(std::string_view text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto iteration = json.find("iteration");
  if (iteration == json.end() || !iteration->is_number_integer()) return std::nullopt;
  MetricLine line;
  line.iteration = iteration->get<int64_t>();
  json.erase("iteration");
  if (const auto time = json.find("time"); time != json.end() && time->is_number()) {
    line.time = time->get<double>();
    json.erase("time");
  }
  flatten("", json, line);
  return line;
}

void LineFollower::read(const std::function<void(std::string_view line)>& take) {
  const base::FileWork work{"read", path_};
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path_, error);
  if (error || size <= offset_) return;
  const base::FileDescriptor file = base::open_read(path_);
  constexpr uint64_t piece = uint64_t{1} << 20;
  std::string waiting;
  for (uint64_t at = offset_; at < size;) {
    const uint64_t bytes = std::min<uint64_t>(piece, size - at);
    const size_t before = waiting.size();
    waiting.resize(before + bytes);
    base::read_at(file.get(), at, std::as_writable_bytes(std::span(waiting.data() + before, bytes)),
                  path_);
    at += bytes;
    size_t begin = 0;
    for (size_t end = 0; (end = waiting.find('\n', begin)) != std::string::npos; begin = end + 1)
      take(std::string_view(waiting).substr(begin, end - begin));
    waiting.erase(0, begin);
    offset_ = at - waiting.size();
  }
}

}  // namespace trireme::report
