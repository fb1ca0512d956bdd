#include "reward/math_answer.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "reward/math_compare.hpp"
#include "reward/math_normal.hpp"
#include "reward/math_parser.hpp"
#include "trireme/text/pattern.hpp"

namespace trireme::reward::math {

using text::Pattern;
namespace {

constexpr size_t environments = 6;           // joined by "and", "or" or commas
constexpr size_t groups_of_environment = 7;  // six kinds of LaTeX, a percent sign

// LaTeX in $$, \[ \], $, \( \), " [ ] ", or a fraction of numbers; each kind is a group.
std::string environment() {
  return R"((?:(?:(?<!\\)\$\$((?:[^$]|\$(?!\$))+?)(?<!\\)\$\$)"
         R"(|(?<!\\)\\\[((?:[^\\]|\\(?!\]))+?)(?<!\\)\\\])"
         R"(|(?<!\\|\d)\$((?:\\[$]|[^\n$])+?)(?<!\\)\$)"
         R"(|(?<!\\)\\\(((?:[^\\\n]|\\(?!\)))+?)(?<!\\)\\\))"
         R"(|\s\[([^\n\]\[]+?)\]\s)"
         R"(|(-?\\frac{-?\d+(?:[.,]\d+)?}{-?\d+(?:[.,]\d+)?}))"
         R"()\s*((?:\\?%|[Pp]ercent|[Pp]ercentage|[Pp]ct))?))";
}

std::string latex_pattern() {
  std::string out = environment();
  for (size_t i = 1; i < environments; ++i)
    out += R"((?:\s*(?:,?and|,?or|,)\s*)" + environment() + ")?";
  return "(?:" + out + ")";
}

// Groups: an expression; or integer, decimals (twice), decimals alone, integer alone, percent sign.
constexpr size_t groups_of_number = 7;
std::string number_pattern() {
  return R"((?:(?:^|\s|=)(?:\*\*)?[$€£¥₹₽₪₩₫฿₡₢₣₤₥₦₧₨₭₮₯)"
         R"(₰₱₲₳₴₵₶₷₸₺₻₼₾₿]?(?<!\d)(?:)"
         R"((-?[1-9]\d{0,2}(?:[ ,]\d{3})+)(\.\d+)?|(-?\d+)([.,]\d+)|(\.\d+)|(-?\d+)))"
         R"((\s*(?:%|[Pp]ercent|\s*[Pp]ercentage|\s*[Pp]ct))?))";
}

// An operator is within reach of the first digit: a long run of numbers is not searched from each.
std::string expression_pattern() {
  return R"((?:(?:^|\s|=)(?:\*\*)?(-?\(?-?\d(?=[\d.\s]{0,200}[+\-*×/^()÷]))"
         R"([\d.\s+\-*×/^()÷]*[+\-*×/^()÷][\d.\s+\-*×/^()÷]+\)?))"
         R"((?:\*\*)?(?:\.|,|:|\s|\)|\$|$)))";
}

enum class Form { latex, boxes_in_latex, boxes, plain };

struct Place {
  Form form;
  Pattern::Groups groups;
  size_t begin, end;
};

struct Search {
  Form form;
  Pattern pattern;
};

// Patterns in groups of falling priority: a group is searched for where the groups before it
// hold nothing that can be read. `anchored`: only texts with the word "answer" have such places.
struct Searches {
  bool anchored;
  std::vector<Search> searches;
};

const std::array<Searches, 5>& all_searches() {
  static const std::array<Searches, 5> all = [] {
    const std::string latex = latex_pattern();
    const std::string either = "(?:" + expression_pattern() + "|" + number_pattern() + ")";
    const auto search = [](Form form, const std::string& pattern) {
      return Search{form, Pattern::built_in((form == Form::plain ? "" : "(?s)") + pattern)};
    };
    const std::string just_is = R"((?i:final answer.{0,100}?)\s+is:?)";
    const std::string in_short = R"((?:.{0,100}=\s*|.{0,50}?))", end = R"((?!\s*=))";
    return std::array<Searches, 5>{
        Searches{
            true,
            {search(Form::latex, R"((?i:final answer is):?\s*)" + latex + R"(\.?\s?I hope)"),
             search(Form::plain, R"((?i:final answer is):?\s*)" + either + R"(\.?\s?I hope)")}},
        Searches{true,
                 {search(Form::latex, just_is + R"(\s*)" + latex),
                  search(Form::boxes_in_latex, latex), search(Form::plain, just_is + either)}},
        Searches{true,
                 {search(Form::latex, "(?i:answer):.{0,50}?" + latex),
                  search(Form::plain, "(?i:answer):" + in_short + either + end)}},
        Searches{true,
                 {search(Form::latex, "(?i:answer).{0,50}?" + latex),
                  search(Form::plain, "(?i:answer)" + in_short + either + end)}},
        Searches{false,
                 {search(Form::latex, latex),
                  search(Form::plain, expression_pattern() + "()()()()()()()"),
                  search(Form::plain, "()" + number_pattern())}}};
  }();
  return all;
}

bool has_word_answer(std::string_view text) {
  constexpr std::string_view word = "answer";
  return std::search(text.begin(), text.end(), word.begin(), word.end(), [](char a, char b) {
           return std::tolower(static_cast<unsigned char>(a)) == b;
         }) != text.end();
}

bool has_box(std::string_view latex) {
  const size_t box = latex.find("\\boxed{");
  return box != std::string_view::npos && latex.find('}', box + 8) != std::string_view::npos;
}

// The LaTeX groups of the i-th environment of a match, counted from `first`.
std::string_view latex_of(const Pattern::Groups& groups, size_t i) {
  for (size_t kind = 0; kind + 1 < groups_of_environment; ++kind) {
    const std::string_view found = groups[1 + i * groups_of_environment + kind];
    if (!found.empty()) return found;
  }
  return {};
}

void add_places(const Search& search, std::string_view text, std::vector<Place>& places) {
  for (Pattern::Groups& groups : search.pattern.find_all(text)) {
    if (search.form == Form::boxes_in_latex && !has_box(latex_of(groups, 0))) continue;
    const auto begin = static_cast<size_t>(groups[0].data() - text.data());
    const size_t end = begin + groups[0].size();
    places.push_back({search.form, std::move(groups), begin, end});
  }
}

// From the first box to the last brace: which box is meant is decided when it is read.
void add_boxes(std::string_view text, std::vector<Place>& places) {
  constexpr std::string_view box = "\\boxed{";
  const size_t begin = text.find(box), end = text.rfind('}');
  if (begin == std::string_view::npos || end == std::string_view::npos ||
      end < begin + box.size() + 1)
    return;
  places.push_back({Form::boxes, {text.substr(begin, end + 1 - begin)}, begin, end + 1});
}

// ---- reading ----

// The last side of a = b = c.
std::string_view last_equation(std::string_view latex) {
  if (latex.find_first_of(",;") != std::string_view::npos) return latex;
  size_t count = 0, last = 0;
  for (size_t i = 0; i < latex.size(); ++i) {
    if (latex[i] != '=') continue;
    if (i > 0 && std::string_view("\\<!>").find(latex[i - 1]) != std::string_view::npos) continue;
    ++count;
    last = i + 1;
  }
  return count > 1 ? latex.substr(last) : latex;
}

Answer read_latex(std::string_view latex, Boxes boxes, bool percent) {
  Answer answer;
  answer.text = normal_latex(latex, boxes);
  answer.value = parse_latex(*answer.text);
  if (!answer.value) {
    const std::string_view last = last_equation(*answer.text);
    if (last.size() != answer.text->size()) answer.value = parse_latex(last);
  }
  if (answer.value && percent) answer.value = make(Kind::percent, "", {answer.value});
  return answer;
}

Answer read_environments(const Place& place) {
  std::vector<Answer> read;
  for (size_t i = 0; i < environments; ++i) {
    const std::string_view latex = latex_of(place.groups, i);
    if (latex.empty() || (place.form == Form::boxes_in_latex && !has_box(latex))) continue;
    const auto& percent = place.groups[(i + 1) * groups_of_environment];
    read.push_back(read_latex(latex, Boxes::all, !percent.empty()));
  }
  if (read.empty()) return {};
  if (read.size() == 1 ||
      std::ranges::any_of(read, [](const Answer& one) { return one.value == nullptr; }))
    return read.front();
  std::vector<Term> elements;
  std::string text;
  for (const Answer& one : read) {
    const bool set = one.value->kind == Kind::finite_set;
    if (set) elements.insert(elements.end(), one.value->parts.begin(), one.value->parts.end());
    else elements.push_back(one.value);
    text += (text.empty() ? "" : " and ") + *one.text;
  }
  return {make(Kind::finite_set, "", std::move(elements)), text};
}

Answer read_plain(const Place& place) {
  const auto group = [&](size_t i) { return place.groups[1 + i]; };
  std::string whole(!group(1).empty() ? group(1) : !group(3).empty() ? group(3) : group(6));
  std::string fraction(!group(2).empty() ? group(2) : !group(4).empty() ? group(4) : group(5));
  if (whole.empty() && fraction.empty()) return {parse_plain(group(0)), std::string(group(0))};
  std::erase_if(whole, [](char c) { return c == ',' || c == ' '; });
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  if (whole.empty()) whole = "0";
  if (fraction.starts_with(',')) fraction[0] = '.';
  const std::string text = whole + fraction;
  const bool minus = text.starts_with('-');
  Term value = number(text.substr(minus ? 1 : 0));
  if (minus) value = negative(value);
  if (!group(7).empty()) value = make(Kind::percent, "", {value});
  return {value, text};
}

Answer read(const Place& place) {
  switch (place.form) {
    case Form::plain: return read_plain(place);
    case Form::boxes: return read_latex(place.groups[0], Boxes::last, false);
    default: return read_environments(place);
  }
}

}  // namespace

Answer find_answer(std::string_view text) {
  const bool anchored = has_word_answer(text);
  Answer found;
  for (size_t rank = 0; rank < all_searches().size(); ++rank) {
    const Searches& group = all_searches()[rank];
    std::vector<Place> places;
    for (const Search& search : group.searches) {
      const bool boxes = search.form == Form::boxes_in_latex;
      if (boxes && !has_box(text)) continue;
      if (boxes || anchored || !group.anchored) add_places(search, text, places);
      if (boxes) add_boxes(text, places);
    }
    std::ranges::stable_sort(places, [](const Place& a, const Place& b) {
      return a.end != b.end ? a.end > b.end : a.begin < b.begin;
    });
    for (const Place& place : places) {
      Answer one = read(place);
      if (!found.text && one.text && !one.text->empty()) found.text = one.text;
      if (one.value == nullptr) continue;
      found.value = std::move(one.value);
      return found;
    }
  }
  return found;
}

Answer answer_of_label(std::string_view label) {
  constexpr std::string_view mark = "####";
  if (const size_t at = label.rfind(mark); at != std::string_view::npos)
    label.remove_prefix(at + mark.size());
  return find_answer("\\boxed{" + std::string(label) + "}");
}

bool equal_by_math_verify(std::string_view response, std::string_view label) {
  const Answer wanted = answer_of_label(label);
  const Answer given = find_answer(response);
  if (wanted.value && given.value && equal_values(wanted.value, given.value)) return true;
  return wanted.text && given.text && *wanted.text == *given.text;
}

}  // namespace trireme::reward::math
