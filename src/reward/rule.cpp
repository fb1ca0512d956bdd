// Rules: exact text, number, boxed or mathematical answer or regular expression against the label,
// with parts for format and length. No model, no process.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <optional>

#include "reward/last_number.hpp"
#include "reward/math_answer.hpp"
#include "reward/math_verl.hpp"
#include "trireme/base/error.hpp"
#include "trireme/plugin/answers.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/text/json_text.hpp"
#include "trireme/text/pattern.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::reward {

using text::Pattern;
namespace {

// White space of any script, as Python's strip() takes it.
std::string_view trim(std::string_view text) {
  text.remove_prefix(text::leading_space(text, text::is_python_space));
  text.remove_suffix(text::trailing_space(text, text::is_python_space));
  return text;
}

// ASCII letters: the case of others depends on the language.
bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

// The text between the braces of the last \\boxed{...}, braces inside counted; nullopt without
// one that is closed.
std::optional<std::string_view> last_box(std::string_view text) {
  constexpr std::string_view word = "\\boxed{";
  const size_t found = text.rfind(word);
  if (found == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(found + word.size());
  int depth = 1;
  for (size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == '\\') {
      ++i;  // \{ and \} are signs, not braces
    } else if (rest[i] == '{') {
      ++depth;
    } else if (rest[i] == '}' && --depth == 0) {
      return rest.substr(0, i);
    }
  }
  return std::nullopt;
}

// LaTeX without what changes nothing of an answer: spaces, dollars (of mathematics and of money),
// the size of brackets and fractions, a full stop at the end.
std::string plain_latex(std::string_view text) {
  constexpr std::string_view dropped[] = {
      "\\left", "\\right", "\\displaystyle", "\\!", "\\,", "\\;", "\\:", "\\ ", "\\$", "$", " ",
      "\n",     "\t"};
  std::string out;
  while (!text.empty()) {
    const auto* const found =
        std::find_if(std::begin(dropped), std::end(dropped),
                     [&](std::string_view word) { return text.starts_with(word); });
    // \leftarrow is another word than \left.
    const bool longer = found != std::end(dropped) && found->size() > 2 &&
                        text.size() > found->size() &&
                        std::isalpha(static_cast<unsigned char>(text[found->size()])) != 0;
    if (text.starts_with("\\\\")) {  // the end of a row: the second backslash begins nothing
      out += "\\\\";
      text.remove_prefix(2);
    } else if (found != std::end(dropped) && !longer) {
      text.remove_prefix(found->size());
    } else if (text.starts_with("\\dfrac") || text.starts_with("\\tfrac")) {
      out += "\\frac";
      text.remove_prefix(6);
    } else {
      out += text.front();
      text.remove_prefix(1);
    }
  }
  if (out.ends_with('.')) out.pop_back();
  return out;
}

Pattern::Case letter_case(const config::RewardSource& options) {
  return options.case_sensitive ? Pattern::Case::sensitive : Pattern::Case::ignored;
}

class RuleSource : public Source {
 public:
  RuleSource(const config::RewardSource& options, std::string name)
      : options_(options), name_(std::move(name)) {
    if (!options_.pattern.empty()) {
      answer_.emplace(options_.pattern, "reward source " + name_ + ": pattern",
                      letter_case(options_), Pattern::Extent::part);
    }
    if (!options_.format_pattern.empty()) {
      format_.emplace(options_.format_pattern, "reward source " + name_ + ": format_pattern",
                      letter_case(options_), Pattern::Extent::whole);
    }
    VALIDATE(options_.rule != config::Rule::regex || answer_, ExitCode::configuration,
             "reward source ", name_,
             ": rule = \"regex\" without a pattern: give the expression that right answers match");
    VALIDATE(options_.length_weight == 0 || options_.length_target > 0, ExitCode::configuration,
             "reward source ", name_,
             ": length_weight without length_target: give the response length in tokens from which "
             "brevity counts");
  }

  const std::string& name() const override { return name_; }

  std::string label_problem(const Request& request) const override {
    if (!compares()) return {};
    const Label label = label_of(request);
    return label.problem.empty() ? text_problem(label.text) : label.problem;
  }

  Scores score(std::span<const Request> requests) override {
    Scores out;
    for (const Request& request : requests) {
      double value = 0;
      const int64_t limits = given_up();
      if (options_.rule != config::Rule::none) {
        const bool right = is_right(request);
        out.metrics["right"].push_back(right ? 1.f : 0.f);
        value += right ? options_.score_right : options_.score_wrong;
      }
      if (format_) {
        const bool formatted = format_->matches(request.response);
        out.metrics["format"].push_back(formatted ? 1.f : 0.f);
        value += formatted ? options_.format_weight : 0;
      }
      if (options_.length_weight != 0) {
        const double excess = length_excess(request);
        out.metrics["length_excess"].push_back(static_cast<float>(excess));
        value -= options_.length_weight * excess;
      }
      if (answer_ || format_)
        out.metrics["pattern_limit"].push_back(given_up() > limits ? 1.f : 0.f);
      out.values.push_back(static_cast<float>(value));
    }
    return out;
  }

 private:
  bool is_right(const Request& request) const {
    if (options_.rule == config::Rule::regex) return answer_->matches(request.response);
    const std::string label = comparable(request);
    std::optional<std::string_view> answer =
        answer_ ? answer_->find_last(request.response) : request.response;
    if (options_.rule == config::Rule::number) {
      const auto wanted = last_number(label);
      return answer && last_number(*answer) == wanted;
    }
    if (options_.rule == config::Rule::math)
      return answer && math::equal_by_math_verify(*answer, label);
    if (options_.rule == config::Rule::math_verl) return answer && equal_by_verl(*answer, label);
    if (options_.rule == config::Rule::boxed) {
      if (answer) answer = last_box(*answer);
      return answer && same_answer(*answer, last_box(label).value_or(label));
    }
    if (!answer) return false;
    return options_.case_sensitive ? trim(*answer) == trim(label)
                                   : equal_ignoring_case(trim(*answer), trim(label));
  }

  // Equal as texts, or as numbers where both are nothing else.
  bool same_answer(std::string_view answer, std::string_view wanted) const {
    const std::string a = plain_latex(answer), b = plain_latex(wanted);
    if (options_.case_sensitive ? a == b : equal_ignoring_case(a, b)) return true;
    const auto number = whole_number(a);
    return number && number == whole_number(b);
  }

  // The label to compare with, or why there is none.
  struct Label {
    std::string text, problem;
  };

  bool compares() const {
    return options_.rule != config::Rule::none && options_.rule != config::Rule::regex;
  }

  Label label_of(const Request& request) const {
    if (options_.label_key.empty()) return checked(request.label, request.label_json, "label");
    const std::string column = base::text("column \"", options_.label_key, "\" (label_key)");
    const auto extra = text::parse_record(request.extra.starts_with('{') ? request.extra : "{}",
                                          {"the record's other columns", 1}, text::Numbers::exact);
    const auto found = extra.find(options_.label_key);
    if (found == extra.end() || found->is_null()) return {"", base::text("no ", column)};
    const std::string label = text::text_or_json(*found);
    return checked(label, found->is_string() ? "" : label, column);
  }

  // `json`: of a label that is not a text.
  static Label checked(const std::string& text, const std::string& json, const std::string& what) {
    if (text.empty() && json.empty()) return {"", "no " + what};
    if (json.starts_with('[') || json.starts_with('{')) {
      return {"", base::text("the ", what, " is ", json.front() == '[' ? "a list" : "an object",
                             " (a rule compares with one text or number)")};
    }
    if (text::leading_space(text, text::is_python_space) == text.size())
      return {"", base::text("the ", what, " is blank")};
    return {text, ""};
  }

  // Why the rule cannot compare with this label.
  std::string text_problem(const std::string& label) const {
    if (options_.rule == config::Rule::number && !last_number(label)) {
      return base::text(
          "the label \"", plugin::excerpt(label, 60),
          "\" holds no number at its end (a fraction is none, nor a time or a date; rule = "
          "\"math\" and \"exact\" compare those)");
    }
    if (options_.rule == config::Rule::math) {
      const math::Answer answer = math::answer_of_label(label);
      if (!answer.value && !answer.text)
        return base::text("the label \"", plugin::excerpt(label, 60),
                          "\" holds no answer, so that none can equal it");
    }
    return {};
  }

  // A run has looked at all labels before it starts.
  std::string comparable(const Request& request) const {
    Label label = label_of(request);
    const std::string problem = label.problem.empty() ? text_problem(label.text) : label.problem;
    VALIDATE(problem.empty(), ExitCode::bad_data, "reward source ", name_, ", ", described(request),
             ": ", problem, ": correct the data, or name the right column (data.label_key)");
    return std::move(label.text);
  }

  int64_t given_up() const {
    return (answer_ ? answer_->given_up() : 0) + (format_ ? format_->given_up() : 0);
  }

  double length_excess(const Request& request) const {
    const auto tokens = static_cast<double>(
        request.turn_tokens.value_or(std::ssize(request.ids) - request.prompt_len));
    return std::max(0.0, tokens / static_cast<double>(options_.length_target) - 1);
  }

  config::RewardSource options_;
  std::string name_;
  std::optional<Pattern> answer_;
  std::optional<Pattern> format_;
};

}  // namespace

std::unique_ptr<Source> make_rule(const config::RewardSource& options, std::string name) {
  return std::make_unique<RuleSource>(options, std::move(name));
}

}  // namespace trireme::reward
