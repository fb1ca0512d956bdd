// Which parameters of a model are trained.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/model/spec.hpp"

namespace trireme::model {
namespace {

// The range of "{2..5}" at the beginning of a pattern, and the rest of it.
struct NumberRange {
  int64_t low = 0, high = 0;
  std::string_view rest;
};
std::optional<NumberRange> number_range(std::string_view pattern) {
  const size_t end = pattern.find('}');
  if (!pattern.starts_with('{') || end == std::string_view::npos) return std::nullopt;
  NumberRange out;
  out.rest = pattern.substr(end + 1);
  const char* const last = pattern.data() + end;
  const auto low = std::from_chars(pattern.data() + 1, last, out.low);
  if (low.ec != std::errc{} || !std::string_view(low.ptr, last).starts_with(".."))
    return std::nullopt;
  const auto high = std::from_chars(low.ptr + 2, last, out.high);
  if (high.ec != std::errc{} || high.ptr != last) return std::nullopt;
  return out.low >= 0 && out.low <= out.high ? std::optional(out) : std::nullopt;
}

bool fits(std::string_view name, std::string_view pattern) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() == '*') {
    for (size_t taken = 0; taken <= name.size(); ++taken) {
      if (fits(name.substr(taken), pattern.substr(1))) return true;
    }
    return false;
  }
  if (const auto range = number_range(pattern)) {
    const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    int64_t number = 0;
    const auto read = std::from_chars(name.data(), name.data() + digits, number);
    return read.ec == std::errc{} && number >= range->low && number <= range->high &&
           fits(name.substr(digits), range->rest);
  }
  return !name.empty() && name.front() == pattern.front() &&
         fits(name.substr(1), pattern.substr(1));
}

// The mistake in a pattern's writing; "": none.
std::string misspelled(std::string_view pattern) {
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '}' || (pattern[i] == '{' && !number_range(pattern.substr(i))))
      return "\"{\" begins a range of numbers, such as {0..3}";
    if (pattern[i] == '{') i = pattern.find('}', i);
  }
  return "";
}

}  // namespace

ModelSpec frozen(ModelSpec spec) {
  for (Parameter& parameter : spec.parameters) parameter.trainable = false;
  return spec;
}

void freeze(ModelSpec& spec, const std::vector<std::string>& patterns, const std::string& key) {
  for (const std::string& pattern : patterns) {
    const std::string problem = misspelled(pattern);
    VALIDATE(problem.empty(), ExitCode::configuration, key, ": \"", pattern,
             "\" is not a pattern: ", problem);
    bool found = false;
    for (Parameter& parameter : spec.parameters) {
      if (!fits(parameter.spec.name, pattern)) continue;
      parameter.trainable = false;
      found = true;
    }
    VALIDATE(
        found, ExitCode::configuration, key, ": \"", pattern, "\" fits no parameter of the model (",
        spec.shape.tied && fits("lm_head.weight", pattern)
            ? base::text("its head is the embedding, ", spec.parameters.front().spec.name)
            : base::text("they are ", spec.parameters.front().spec.name, ", ",
                         spec.parameters[1].spec.name, " ... ", spec.parameters.back().spec.name),
        "): correct it, or take it out; \"*\" is any text, {0..3} a number from 0 to 3");
  }
  VALIDATE(spec.is_trainable(), ExitCode::configuration, key, " = [\"",
           base::join(patterns, "\", \""), "\"] fits all ", spec.parameters.size(),
           " parameters of the model: nothing is left to train");
}

std::vector<std::optional<size_t>> frozen_alike(const ModelSpec& spec, const ModelSpec& base) {
  std::vector<std::optional<size_t>> out;
  for (const Parameter& parameter : spec.parameters) {
    const auto alike = std::ranges::find_if(base.parameters, [&](const Parameter& other) {
      return !other.trainable && part_of(other.role) == Part::base &&
             other.spec.name == parameter.spec.name && other.spec.shape == parameter.spec.shape;
    });
    const bool found = !parameter.trainable && alike != base.parameters.end();
    out.push_back(found ? std::optional(static_cast<size_t>(alike - base.parameters.begin()))
                        : std::nullopt);
  }
  return out;
}

}  // namespace trireme::model
