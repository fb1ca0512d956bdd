#include "environment/tool_calls.hpp"

#include <nlohmann/json.hpp>

#include "trireme/base/error.hpp"
#include "trireme/text/json_brackets.hpp"
#include "trireme/text/json_text.hpp"

namespace trireme::environment {
namespace {

using text::OrderedJson;

// The part after the thinking; empty if the thinking has no end.
std::string_view without_thinking(std::string_view turn) {
  constexpr std::string_view begin = "<think>", end = "</think>";
  if (const size_t at = turn.rfind(end); at != std::string_view::npos)
    return turn.substr(at + end.size());
  const size_t start = turn.find_first_not_of(" \t\r\n");
  return start != std::string_view::npos && turn.substr(start).starts_with(begin)
             ? std::string_view{}
             : turn;
}

struct Form {
  std::vector<std::string> keys;  // of the arguments, the first that is there counts
  bool in_text;                   // they may be JSON in a text
};

OrderedJson parse(std::string_view json, const std::string& name) {
  return text::parse_record(json, {name}, text::Numbers::exact, text::Repeated::last);
}

// A call in JSON. Throws UserError(bad_data) with the reason if it is invalid.
ToolCall call_of(std::string_view json, const std::string& name, const Form& form) {
  const OrderedJson call = parse(json, name);
  VALIDATE(call.is_object(), ExitCode::bad_data, name, " is ", text::kind_of(call),
           ", expected an object with \"name\" and \"", form.keys.back(), "\"");
  const auto called = call.find("name");
  VALIDATE(called != call.end() && called->is_string(), ExitCode::bad_data, name,
           called == call.end() ? " has no \"name\"" : ": \"name\" is not a text");
  for (const std::string& key : form.keys) {
    const auto found = call.find(key);
    if (found == call.end()) continue;
    const bool unwrap = form.in_text && found->is_string();
    return {called->get<std::string>(),
            text::dump(unwrap ? parse(found->get<std::string>(), name + ", " + key) : *found)};
  }
  throw UserError(ExitCode::bad_data, base::text(name, " (", called->get<std::string>(),
                                                 ") has no \"", form.keys.back(), "\""));
}

// Adds the call, or the reason why it is invalid.
bool add(ToolCalls& out, std::string_view json, size_t number, const Form& form) {
  try {
    out.calls.push_back(call_of(json, base::text("tool call ", number), form));
    return true;
  } catch (const UserError& error) {
    if (out.error.empty()) out.error = error.what();
    return false;
  }
}

ToolCalls read_hermes(std::string_view turn) {
  constexpr std::string_view begin = "<tool_call>", end = "</tool_call>";
  static const Form form{{"arguments"}, true};
  ToolCalls out;
  size_t number = 0;
  for (size_t at = turn.find(begin); at != std::string_view::npos; at = turn.find(begin, at)) {
    at += begin.size();
    const size_t stop = turn.find(end, at);
    add(out, turn.substr(at, stop - at), ++number, form);
    if (stop == std::string_view::npos) break;  // a model may end its turn without the end tag
    at = stop + end.size();
  }
  return out;
}

// Bytes of the JSON object that the text begins with; npos: it has no end.
size_t object_length(std::string_view json) {
  int64_t depth = 0;
  const size_t end = text::find_bracket(json, [&depth](size_t, char c) {
    if (c == '{') ++depth;
    return c == '}' && --depth == 0;
  });
  return end == std::string_view::npos ? end : end + 1;
}

// All objects of the turn that are not inside others, perhaps with text, or ;, between them.
ToolCalls read_llama3(std::string_view turn) {
  static const Form form{{"arguments", "parameters"}, false};
  const bool tagged = turn.find("<|python_tag|>") != std::string_view::npos;
  ToolCalls out;
  for (size_t at = turn.find('{'); at != std::string_view::npos; at = turn.find('{', at)) {
    const size_t length = object_length(turn.substr(at));
    if (!add(out, turn.substr(at, length), out.calls.size() + 1, form)) break;
    at += length;
  }
  if (tagged && out.calls.empty() && out.error.empty())
    out.error = "<|python_tag|> without a call (JSON with \"name\" and \"parameters\")";
  // Braces of another kind, such as a set or an answer in JSON, are not calls.
  const auto has = [&](std::string_view word) { return turn.find(word) != std::string_view::npos; };
  const bool meant = tagged || has("\"name\"") || has("\"parameters\"") || has("\"arguments\"");
  if (!meant) out.error.clear();
  return out;
}

// JSON as it is, another text as a text.
std::string as_json(std::string_view arguments) {
  try {
    return text::dump(parse(arguments, "arguments"));
  } catch (const UserError&) {
    return OrderedJson(std::string(arguments))
        .dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }
}

ToolCalls read_pattern(const text::Pattern& pattern, std::string_view turn) {
  const auto name = pattern.group("name"), arguments = pattern.group("arguments");
  ToolCalls out;
  for (const text::Pattern::Groups& groups : pattern.find_all(turn)) {
    const size_t first = groups.size() > 1 && !name ? 1 : 0;
    const std::string_view called = name ? groups[*name] : std::string_view{};
    const std::string_view given = groups[arguments.value_or(first)];
    if (name && called.data() == nullptr) {
      if (out.error.empty())
        out.error = base::text("tool call ", out.calls.size() + 1, " has no name (",
                               "environment.tool_pattern matched without that group)");
      continue;
    }
    out.calls.push_back({std::string(called), as_json(given)});
  }
  return out;
}

}  // namespace

CallReader::CallReader(const config::EnvironmentOptions& options) : form_(options.tool_calls) {
  if (form_ != config::ToolCalls::regex) return;
  pattern_.emplace(options.tool_pattern, "environment.tool_pattern", text::Pattern::Case::sensitive,
                   text::Pattern::Extent::part);
}

ToolCalls CallReader::read(std::string_view turn) const {
  const std::string_view said = without_thinking(turn);
  switch (form_) {
    case config::ToolCalls::none: break;
    case config::ToolCalls::hermes: return read_hermes(said);
    case config::ToolCalls::llama3: return read_llama3(said);
    case config::ToolCalls::regex: return read_pattern(*pattern_, said);
  }
  return {};
}

}  // namespace trireme::environment
