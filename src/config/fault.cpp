#include "trireme/config/fault.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {

namespace {

std::vector<std::string_view> split(std::string_view text, size_t max_parts) {
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < max_parts) {
    const size_t colon = text.find(':');
    if (colon == std::string_view::npos) break;
    parts.push_back(text.substr(0, colon));
    text.remove_prefix(colon + 1);
  }
  parts.push_back(text);
  return parts;
}

[[noreturn]] void malformed(std::string_view key, std::string_view text, std::string_view form) {
  throw UserError(ExitCode::configuration, base::text("fault.", key, " = \"", text, "\" is malformed: write \"", form, "\""));
}

template <class T>
std::optional<T> to_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int> to_rank(std::string_view text) {
  if (text == "*") return -1;
  const auto rank = to_number<int>(text);
  return rank && *rank >= 0 ? rank : std::nullopt;
}

// What stands after "rank:step", per key; empty: nothing may.
std::string_view third_part(std::string_view key) {
  if (key == "exit_at") return "code";
  if (key == "nan_at") return "loss|grad|weight";
  if (key == "flip_at") return "tensor";
  return "";
}

bool third_part_fits(std::string_view key, std::string_view what) {
  if (key == "exit_at") {
    const auto code = to_number<int>(what);
    return code && *code >= 0 && *code <= 255;
  }
  if (key == "nan_at") return what == "loss" || what == "grad" || what == "weight";
  return !what.empty();
}

}  // namespace

std::optional<FaultAt> parse_fault_at(std::string_view key, std::string_view text) {
  if (text.empty()) return std::nullopt;
  const std::string_view third = third_part(key);
  const std::string form = third.empty() ? "rank:step" : base::text("rank:step:", third);
  const auto parts = split(text, 3);
  if (parts.size() != (third.empty() ? 2u : 3u)) malformed(key, text, form);
  const auto rank = to_rank(parts[0]);
  const auto step = to_number<int64_t>(parts[1]);
  if (!rank || !step || *step < 0) malformed(key, text, form);
  FaultAt fault{*rank, *step, ""};
  if (!third.empty()) {
    if (!third_part_fits(key, parts[2])) malformed(key, text, form);
    fault.what = parts[2];
  }
  return fault;
}

std::optional<FaultDelay> parse_fault_delay(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const auto parts = split(text, 3);
  const auto rank = to_rank(parts[0]);
  const auto milliseconds = parts.size() == 3 ? to_number<double>(parts[2]) : std::nullopt;
  if (!rank || !milliseconds || !(*milliseconds >= 0 && *milliseconds < 1e9) || parts[1].empty())
    malformed("delay", text, "rank:phase:ms");
  return FaultDelay{*rank, std::string(parts[1]), *milliseconds};
}

std::optional<FaultIo> parse_fault_io(std::string_view text) {
  if (text.empty()) return std::nullopt;
  static constexpr std::array<std::string_view, 6> operations{"open", "write", "fsync", "rename", "close", "mkdir"};
  static constexpr std::string_view form = "open|write|fsync|rename|close|mkdir:n:errno";
  const auto parts = split(text, 3);
  if (parts.size() != 3) malformed("io_fail", text, form);
  const auto call = to_number<int64_t>(parts[1]);
  const auto error = to_number<int>(parts[2]);
  const bool known = std::find(operations.begin(), operations.end(), parts[0]) != operations.end();
  if (!known || !call || *call < 1 || !error || *error < 1) malformed("io_fail", text, form);
  return FaultIo{std::string(parts[0]), *call, *error};
}

void check_faults(const FaultOptions& options) {
  parse_fault_at("kill_at", options.kill_at);
  parse_fault_at("hang_at", options.hang_at);
  parse_fault_at("segv_at", options.segv_at);
  parse_fault_at("exit_at", options.exit_at);
  parse_fault_at("nan_at", options.nan_at);
  parse_fault_at("flip_at", options.flip_at);
  parse_fault_at("skip_collective_at", options.skip_collective_at);
  parse_fault_at("alloc_fail_at", options.alloc_fail_at);
  parse_fault_delay(options.delay);
  parse_fault_io(options.io_fail);
  static constexpr std::array<std::string_view, 6> plugin_faults{"", "crash", "hang", "nan", "short", "slow"};
  if (std::find(plugin_faults.begin(), plugin_faults.end(), options.plugin_fault) == plugin_faults.end()) {
    malformed("plugin_fault", options.plugin_fault, "crash|hang|nan|short|slow");
  }
}

}  // namespace trireme::config
