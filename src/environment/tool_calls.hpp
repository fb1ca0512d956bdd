// Calls of tools in a turn that the policy wrote.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/config/options.hpp"
#include "trireme/text/pattern.hpp"

namespace trireme::environment {

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON
  bool operator==(const ToolCall&) const = default;
};

struct ToolCalls {
  std::vector<ToolCall> calls;
  std::string error;  // why something that looks like a call is none; empty: there is no such thing
};

// Reads the forms of environment.tool_calls, with the same result as vLLM's parsers of these names.
// Text before the last </think> of a turn is ignored.
class CallReader {
 public:
  // Throws UserError(configuration) for a pattern that does not compile.
  explicit CallReader(const config::EnvironmentOptions& options);
  ToolCalls read(std::string_view turn) const;

 private:
  config::ToolCalls form_;
  std::optional<text::Pattern> pattern_;
};

}  // namespace trireme::environment
