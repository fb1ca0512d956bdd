#include "trireme/config/fault.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/fault_gates.hpp"
#include "trireme/base/fault_point.hpp"
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
  throw UserError(ExitCode::configuration, base::text("fault.", key, " = \"", text,
                                                      "\" is malformed: write \"", form, "\""));
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

struct Kind {
  std::string_view name;
  std::string_view value;  // what its fifth part is; empty: it has none
  double largest = 0;      // of the value
};
constexpr std::array kinds{
    Kind{"kill", "", 0},          Kind{"segv", "", 0},       Kind{"hang", "", 0},
    Kind{"suspend", "", 0},       Kind{"exit", "code", 255}, Kind{"delay", "ms", 1e9},
    Kind{"signal", "number", 64}, Kind{"alloc_fail", "", 0}, Kind{"io_fail", "errno", 4095},
    Kind{"nan", "", 0},           Kind{"skip", "", 0},       Kind{"open", "gate", 1e6},
    Kind{"gate", "gate", 1e6}};

constexpr std::array<std::string_view, 5> numbers{"loss", "grad", "weight", "generator", "bucket"};

bool is_number(std::string_view place) {
  return std::find(numbers.begin(), numbers.end(), place) != numbers.end();
}

constexpr double killed = 137;  // a shell's exit code for SIGKILL

std::optional<int64_t> to_pass(std::string_view text) {
  if (text == "*") return 0;
  const auto pass = to_number<int64_t>(text);
  return pass && *pass >= 1 ? pass : std::nullopt;
}

}  // namespace

Fault parse_fault(std::string_view text) {
  const auto parts = split(text, 5);
  const auto* const kind = std::find_if(kinds.begin(), kinds.end(),
                                        [&](const Kind& one) { return one.name == parts[0]; });
  if (kind == kinds.end())
    malformed("at", text,
              "kill|segv|hang|suspend|exit|delay|signal|alloc_fail|io_fail|nan|skip|open|gate:rank:"
              "place:pass[:value]");
  const std::string form = base::text(
      kind->name, ":rank:", kind->name == "nan" ? "loss|grad|weight|generator|bucket" : "place",
      ":pass", kind->value.empty() ? "" : base::text(":", kind->value));
  if (parts.size() != (kind->value.empty() ? 4u : 5u)) malformed("at", text, form);
  const auto rank = to_rank(parts[1]);
  const auto pass = to_pass(parts[3]);
  const auto value = kind->value.empty() ? std::optional(0.0) : to_number<double>(parts[4]);
  const bool named = kind->name == "nan" ? is_number(parts[2]) : !parts[2].empty();
  if (!rank || !pass || !named || !value || !(*value >= 0 && *value <= kind->largest))
    malformed("at", text, form);
  return {std::string(kind->name), *rank, std::string(parts[2]), *pass, *value};
}

std::vector<Fault> parse_faults(const Strings& texts) {
  std::vector<Fault> faults;
  for (const auto& text : texts) faults.push_back(parse_fault(text));
  return faults;
}

std::optional<FaultIo> parse_fault_io(std::string_view text) {
  if (text.empty()) return std::nullopt;
  static constexpr std::array<std::string_view, 6> operations{"open",   "write", "fsync",
                                                              "rename", "close", "mkdir"};
  static constexpr std::string_view form = "open|write|fsync|rename|close|mkdir:n:errno[:rank]";
  const auto parts = split(text, 4);
  if (parts.size() < 3) malformed("io_fail", text, form);
  const auto call = to_number<int64_t>(parts[1]);
  const auto error = to_number<int>(parts[2]);
  const auto rank = parts.size() == 4 ? to_rank(parts[3]) : std::optional(-1);
  const bool known = std::find(operations.begin(), operations.end(), parts[0]) != operations.end();
  if (!known || !call || *call < 1 || !error || *error < 1 || !rank)
    malformed("io_fail", text, form);
  return FaultIo{std::string(parts[0]), *call, *error, *rank};
}

void check_faults(const FaultOptions& options) {
  parse_faults(options.at);
  parse_fault_io(options.io_fail);
  static constexpr std::array<std::string_view, 6> plugin_faults{"",    "crash", "hang",
                                                                 "nan", "short", "slow"};
  if (std::find(plugin_faults.begin(), plugin_faults.end(), options.plugin_fault) ==
      plugin_faults.end()) {
    malformed("plugin_fault", options.plugin_fault, "crash|hang|nan|short|slow");
  }
}

void install_faults(const FaultOptions& options, const std::string& run_folder, int rank) {
  base::set_gate_folder(run_folder);
  std::vector<base::InjectedFault> mine;
  for (const Fault& fault : parse_faults(options.at)) {
    if (fault.is_for(rank)) mine.push_back({fault.kind, fault.place, fault.pass, fault.value});
  }
  if (!options.crash_at.empty()) mine.push_back({"exit", options.crash_at, 1, killed});
  const auto io = parse_fault_io(options.io_fail);
  if (io && (io->rank < 0 || io->rank == rank))
    mine.push_back({"io_fail", "ckpt." + io->operation, io->call, static_cast<double>(io->error)});
  base::install_faults(std::move(mine));
}

}  // namespace trireme::config
