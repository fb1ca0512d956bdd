#include "reward/math_normal.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <vector>

#include "reward/latex_text.hpp"
#include "trireme/text/pattern.hpp"

namespace trireme::reward::math {

using text::Pattern;
namespace {

// Each match by what `by` makes of its groups.
template <class By>
std::string replaced(const std::string& text, const Pattern& pattern, const By& by) {
  const auto matches = pattern.find_all(text);
  if (matches.empty()) return text;
  std::string out;
  size_t begin = 0;
  for (const Pattern::Groups& groups : matches) {
    const auto at = static_cast<size_t>(groups[0].data() - text.data());
    out.append(text, begin, at - begin).append(by(groups));
    begin = at + groups[0].size();
  }
  return out.append(text, begin);
}

// \1 and \2 in `by` are groups.
std::string with_groups(std::string_view by, const Pattern::Groups& groups) {
  std::string out;
  for (size_t i = 0; i < by.size(); ++i) {
    if (by[i] == '$' && i + 1 < by.size() && is_digit(by[i + 1])) {
      out += groups[static_cast<size_t>(by[++i] - '0')];
    } else {
      out += by[i];
    }
  }
  return out;
}

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// ---- boxes ----

struct Box {
  size_t begin = 0, end = 0;  // of the command, and behind its brace
  std::string content;
  bool closed = true;
};

struct Command {
  size_t begin, end;
};

std::vector<Command> box_commands(std::string_view text) {
  std::vector<Command> commands;
  for (size_t at = text.find('\\'); at != std::string_view::npos; at = text.find('\\', at + 1)) {
    for (const std::string_view command : {"\\boxed", "\\fbox"}) {
      if (text.substr(at).starts_with(command)) commands.push_back({at, at + command.size()});
    }
  }
  return commands;
}

// The box of this command; its braces must end before `before`. nullopt at the text's end.
std::optional<Box> box_of(std::string_view text, Command command, size_t before) {
  size_t open = command.end;
  while (open < before && is_space(text[open])) ++open;
  if (open >= before) return std::nullopt;
  Box box{command.begin, text.size(), std::string(text.substr(open)), false};
  if (text[open] != '{') return box;
  int64_t depth = 0;
  for (size_t i = open; i < before; ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] != '}' || --depth != 0) continue;
    box.end = i + 1;
    box.content = trimmed(text.substr(open + 1, i - open - 1));
    box.closed = true;
    break;
  }
  return box;
}

// Two boxes are one answer where little is between them, or different ones with "and" or a comma.
bool belong_together(std::string_view between, const std::string& first,
                     const std::string& second) {
  static const Pattern separator = Pattern::built_in(R"(\b(and|or)\b|,|;)");
  const auto characters = std::ranges::count_if(
      between, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  return characters < 10 || (first != second && characters < 70 && separator.matches(between));
}

std::string boxed_content(std::string_view text, Boxes boxes) {
  std::vector<std::string> found;
  size_t before = text.size();
  std::optional<size_t> last_begin;
  const auto commands = box_commands(text);
  for (auto command = commands.rbegin(); command != commands.rend(); ++command) {
    const auto box = box_of(text, *command, before);
    if (!box) break;
    if (!box->closed) {
      if (found.empty()) found.push_back(box->content);
      break;
    }
    if (boxes == Boxes::last && last_begin &&
        !belong_together(text.substr(box->end, *last_begin - box->end), box->content,
                         found.empty() ? std::string() : found.back()))
      break;
    if (found.empty() || found.back() != box->content) found.push_back(box->content);
    last_begin = before = box->begin;
  }
  if (found.empty()) return std::string(text);
  std::string out;
  for (auto it = found.rbegin(); it != found.rend(); ++it) {
    if (it != found.rbegin()) out += ',';
    out += *it;
  }
  return out;
}

// ---- commands of layout, synonyms ----

std::string without_sizes(std::string text) {
  static const Pattern left =
      Pattern::built_in(R"(\\m?left(\\\{|\{|\\\||\||\[|\(|\\rbracl|\\lgroup|\\lbrace|\\lbrack|)"
                        R"(\\vert|\\lvert|\\lceil|\\lfloor|\\langle|\\llcorner|\\ulcorner))");
  static const Pattern right =
      Pattern::built_in(R"(\\m?right(\\\}|\}|\\\||\||\]|\)|\\rbrack|\\rgroup|\\rbrace|)"
                        R"(\\vert|\\rvert|\\rceil|\\rfloor|\\rangle|\\lrcorner|\\urcorner))");
  const auto bracket = [](const Pattern::Groups& groups) { return std::string(groups[1]); };
  return replaced(replaced(text, left, bracket), right, bracket);
}

struct Synonym {
  std::string_view pattern, by;
};
constexpr Synonym synonyms[] = {
    {R"(\\math(?:rm|it|bf))", R"(\text)"},
    {R"(\\text(?:normal|bf|it|rm))", R"(\text)"},
    {R"(\\(?:d|t|c)frac)", R"(\frac)"},
    {R"(\s\.)", " 0."},
    {R"(\{\.)", "{0."},
    {R"(~=)", R"(\approx)"},
    {R"(\s*\{\s*,\s*\})", ","},
    {R"((?<![a-zA-Z]),?\s*(?:and|or)(?![a-zA-Z]))", ","},
    {R"(,?\s*\\text{\s*(?:and|or)\s*})", ","},
    {R"((?<!\\)\\\s)", " "},
    {"infinity", R"(\infty)"},
    {R"(,?\\ldots)", " "},
    {R"(\s*\bpercentage\b)", R"(\%)"},
    {R"(\\text{percentage})", "%"},
    {R"(\s*\bpercent\b)", R"(\%)"},
    {R"(\\text{percent})", "%"},
    {R"(\s*\bpct\b)", R"(\%)"},
    {R"(\\text{pct})", "%"},
    {R"((?<!\\)inf(?!inity))", R"(\infty)"},
    {" sqrt", R"(\sqrt)"},
};

std::string with_synonyms(const std::string& text) {
  static const Pattern any = [] {
    std::string all;
    for (const Synonym& synonym : synonyms)
      all.append(all.empty() ? "(" : "|(").append(synonym.pattern).append(")");
    return Pattern::built_in(all);
  }();
  return replaced(text, any, [](const Pattern::Groups& groups) {
    const auto taken = std::find_if(groups.begin() + 1, groups.end(),
                                    [](std::string_view group) { return group.data() != nullptr; });
    return std::string(synonyms[taken - groups.begin() - 1].by);
  });
}

std::string basic_form(std::string text) {
  replace_all(text, R"(\mathrm{T})", "T");
  replace_all(text, R"(\mathrm{d})", "d");
  replace_all(text, R"({\rm d})", "d");
  replace_all(text, R"(\left[\begin{matrix})", R"(\begin{bmatrix})");
  replace_all(text, R"(\end{matrix}\right])", R"(\end{bmatrix})");
  text = without_sizes(std::move(text));
  static const Pattern permutations =
      Pattern::built_in(R"(\(([a-zA-Z0-9+\-*/\\ ]+?)\)_{([a-zA-Z0-9+\-*/\\ ]+?)})");
  text = replaced(text, permutations, [](const Pattern::Groups& groups) {
    return with_groups(R"(\frac{($1)!}{(($1)-($2))!})", groups);
  });
  static const Pattern dropped = Pattern::built_in(
      R"(\\mathrm\{th\}|\\!\s*|\\text\s*\{\s*\}|\\\$|\$|(?<!\\)["']|\\displaystyle)");
  text = replaced(text, dropped, [](const Pattern::Groups&) { return std::string(); });
  text = with_synonyms(text);
  std::ranges::replace(text, '\n', ' ');
  std::ranges::replace(text, '\t', ' ');
  if (text.find("matrix") != std::string::npos) return text;
  static const Pattern double_slash = Pattern::built_in(R"(\\\\(?=[a-zA-Z]))");
  return replaced(text, double_slash, [](const Pattern::Groups&) { return std::string("\\"); });
}

// ---- units ----

// Those of math-verify, with "o", "t", "c" and the like: "5 c" is 5.
constexpr std::string_view units =
    "integerpoint|feet|sue|digit|pound|meal|edge|student|children ticket|multiple|east|degree|mph|"
    "kmph|ft|m square| m east|sq m|deg|mile|q .|monkey|prime|ratio|profit of rs|rd|o|gm|p . m|lb|"
    "tile|per|dm|lt|gain|ab|way|west|a .|b .|c .|d .|e .|f .|g .|h .|t|h|no change|men|soldier|"
    "pie|bc|excess|st|inches|noon|cent|by|gal|kmh|c|acre|rise|a . m|th|\u03c0 r 2|sq|mark|l|toy|"
    "coin|sq . m|gallon|\u00b0 f|profit|minw|yr|women|am|pm|hr|cu cm|square|v \u00e2 \u20ac "
    "\u2122|are|rupee|rounds|cubic|cc|mtr|s|ohm|number|day|hour|minute|min|second|man|woman|sec|"
    "cube|mt|sq inch|mp|\u220f cm \u00b3|hectare|more|unit|cu . m|cm 2|rs .|rs|kg|g|month|km|m|cm|"
    "mm|apple|liter|loss|yard|pure|year|increase|decrease|d|less|Surface|litre|pi sq m|s .|metre|"
    "meter|inch";

std::string without_units(std::string text) {
  static const Pattern named = Pattern::built_in(R"((\\(?:text|mbox){.*?})(\^\d|\{\^\d\})?$)");
  const std::string nothing;
  std::string shorter(
      trimmed(replaced(text, named, [&](const Pattern::Groups&) { return nothing; })));
  if (!shorter.empty()) text = std::move(shorter);
  static const Pattern plain =
      Pattern::built_in(R"((\d|\}|\s)\s*(?:(?:)" + std::string(units) + R"()(?:s|es)?)\s*$)");
  for (int time = 0; time < 2; ++time) {
    shorter =
        replaced(text, plain, [](const Pattern::Groups& groups) { return std::string(groups[1]); });
    if (!shorter.empty()) text = std::move(shorter);
  }
  return text;
}

// ---- fractions, roots ----

// \sqrt3 and \frac12 with braces. `skips`: a bracket after a root is its degree.
std::string with_braces(const std::string& text, std::string_view command, bool two) {
  const auto parts = split(text, command);
  std::string out(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    std::string_view rest = parts[i];
    while (!rest.empty() && is_space(rest.front())) rest.remove_prefix(1);
    const auto first = first_character(rest);
    const std::string_view behind = rest.substr(first.size());
    out += command;
    if (first == "{" || (!two && (first == "[" || first.empty()))) {
      out += rest;
    } else if (two && behind.empty()) {
      return text;
    } else {
      out.append("{").append(first).append("}");
      const auto second = two ? first_character(behind) : std::string_view("{");
      if (second == "{") {
        out += behind;
      } else {
        out.append("{").append(second).append("}").append(behind.substr(second.size()));
      }
    }
  }
  return out;
}

std::string with_repaired_operators(std::string text) {
  static const std::pair<Pattern, std::string_view> repairs[] = {
      {Pattern::built_in(R"(\^\s?\((.*?)\))"), "^{$1}"},
      {Pattern::built_in(R"(sqrt\s?\((.*?)\))"), "\\sqrt{$1}"},
      {Pattern::built_in(R"(\\frac\s?(\d)\s?(\d+))"), "\\frac{$1}{$2}"},
      {Pattern::built_in(R"(\\log_\s?(\d)\s?(\d+))"), "\\log_{$1}{$2}"},
      {Pattern::built_in(R"(\\frac\s?{(.*?)}\s?(\d))"), "\\frac{$1}{$2}"},
      {Pattern::built_in(R"(\\frac\s?(\d)\s?{(.*?)})"), "\\frac{$1}{$2}"},
      {Pattern::built_in(R"(\\sqrt\s?(\d))"), "\\sqrt{$1}"},
  };
  for (const auto& [pattern, by] : repairs) {
    text = replaced(text, pattern,
                    [&by = by](const Pattern::Groups& groups) { return with_groups(by, groups); });
  }
  replace_all(text, " sqrt", "\\sqrt");
  text = with_braces(text, "\\sqrt", false);
  text = with_braces(text, "\\frac", true);
  return with_frac_for_slash(text);
}

}  // namespace

std::string normal_latex(std::string_view raw, Boxes boxes) {
  std::string text = without_units(basic_form(boxed_content(raw, boxes)));
  if (text.starts_with('.')) text.insert(0, "0");
  if (text == "0.5") text = "\\frac{1}{2}";
  return std::string(trimmed(with_repaired_operators(std::move(text))));
}

}  // namespace trireme::reward::math
