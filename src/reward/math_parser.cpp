#include "reward/math_parser.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "reward/latex_text.hpp"
#include "reward/math_expression.hpp"
#include "reward/math_sets.hpp"

namespace trireme::reward::math {
namespace {

class Parser : public Expressions {
 public:
  using Expressions::Expressions;

  // An answer: a relation of a name with a list; a list; a relation of sets.
  Term answer(std::string_view text) {
    if (Term value = tried([&] { return list_relation(); })) return value;
    if (Term value = tried([&] { return as_one(elements(Relations::allowed)); }))
      return is_one_number(text) ? separated_number(text) : value;
    return tried([&] { return set_relation(); });
  }

 private:
  enum class Relations { allowed, refused };
  using List = std::vector<std::vector<Term>>;  // between semicolons, between commas

  template <class Read>
  Term tried(const Read& read) {
    at_ = 0;
    try {
      Term value = read();
      return at_end() ? value : nullptr;
    } catch (const Unreadable&) { return nullptr; }
  }

  // 1,234,567: a number, not a list, where no blank follows a comma.
  static bool is_one_number(std::string_view text) {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    if (text.starts_with('-')) text.remove_prefix(1);
    const auto groups = split(text.substr(0, text.find('.')), ",");
    const auto digits = [](std::string_view group) { return std::ranges::all_of(group, is_digit); };
    if (groups.size() < 2 || groups[0].empty() || groups[0].size() > 3 || !digits(groups[0]))
      return false;
    const bool threes = std::all_of(groups.begin() + 1, groups.end(), [&](std::string_view group) {
      return group.size() == 3 && digits(group);
    });
    const size_t dot = text.find('.');
    const bool fraction =
        dot == std::string_view::npos || (dot + 1 < text.size() && digits(text.substr(dot + 1)));
    return threes && fraction;
  }

  static Term separated_number(std::string_view text) {
    std::string digits;
    const bool minus = text.find('-') != std::string_view::npos;
    const bool fraction = text.find_first_not_of(" -") != std::string_view::npos &&
                          text[text.find_first_not_of(" -")] == '0';
    for (const char c : text) {
      if (is_digit(c) || c == '.') digits += c;
      if (c == ',' && fraction && digits.find('.') == std::string::npos) digits += '.';
    }
    return minus ? negative(number(digits)) : number(digits);
  }

  // x = 1, 2 or (x, y) = (1, 2) or x in {1, 2}
  Term list_relation() {
    const Term left = names();
    if (!accept("=") && !accept("in")) throw Unreadable{};
    return make(Kind::relation, "=", {left, as_one(elements(Relations::refused))});
  }

  Term names() {
    if (!accept("(")) return name();
    std::vector<Term> parts{name()};
    while (accept(",")) parts.push_back(name());
    expect(")");
    return parts.size() == 1 ? parts[0] : make(Kind::tuple, "", std::move(parts));
  }

  Term name() {
    if (here().kind != TokenKind::symbol && here().kind != TokenKind::imaginary_unit)
      throw Unreadable{};
    return symbol_with_power();
  }

  Term set_relation() {
    const size_t begin = at_;
    try {
      const Term left = names();
      if (accept("in") || accept("=")) return make(Kind::relation, "=", {left, set_relation()});
    } catch (const Unreadable&) {}
    at_ = begin;
    return set_difference();
  }

  static Term as_set(const Term& value) {
    return value->kind == Kind::tuple ? make(Kind::finite_set, "", value->parts) : value;
  }

  template <class Part>
  Term set_chain(std::string_view operation, Kind kind, const Part& part) {
    Term left = part();
    while (accept(operation)) {
      const Term right = part();
      left = make(kind, "", {as_set(left), as_set(right)});
    }
    return left;
  }

  Term set_difference() {
    return set_chain("setminus", Kind::difference, [&] {
      return set_chain("cup", Kind::join, [&] {
        return set_chain("cap", Kind::intersection, [&] { return set_group(); });
      });
    });
  }

  Term set_group() {
    const Level level(*this);
    const size_t begin = at_;
    if (is("(") && !opens_list()) {
      ++at_;
      const Term inner = set_difference();
      expect(")");
      return inner;
    }
    at_ = begin;
    return set_atom();
  }

  Term named_set() {
    for (const std::string_view name : {"N", "Z", "Q", "R", "C", "P", "empty"}) {
      if (accept(name)) return make(Kind::named_set, std::string(name));
    }
    return nullptr;
  }

  Term set_atom() {
    const Level level(*this);
    if (Term named = named_set()) return named;
    if (accept("boxed")) {
      expect("{");
      const List list = elements(Relations::allowed);
      expect("}");
      return as_one(list);
    }
    const std::string open = here().text;
    if (!opens(here())) throw Unreadable{};
    ++at_;
    const List list = elements(Relations::allowed);
    if (!closes(here())) throw Unreadable{};
    const std::string close = here().text;
    ++at_;
    if (open == "{" || open == "\\{") {
      if (close != (open == "{" ? "}" : "\\}")) throw Unreadable{};
      return finite_set(flat(list));
    }
    if (close != ")" && close != "]") throw Unreadable{};
    const bool pair = list.size() == 1 && list[0].size() == 2 && !list[0][0]->is_set() &&
                      !list[0][1]->is_set() && list[0][0]->kind != Kind::tuple &&
                      list[0][1]->kind != Kind::tuple && list[0][0]->kind != Kind::relation &&
                      list[0][1]->kind != Kind::relation;
    if (pair) return interval(list[0][0], list[0][1], open == "(", close == ")");
    if ((open == "(") != (close == ")")) throw Unreadable{};
    if (list.size() == 1 && list[0].size() == 1) return list[0][0];
    return make(Kind::tuple, "", flat(list));
  }

  // An interval that would be empty is a pair. The ends at infinity are open.
  static Term interval(const Term& from, const Term& to, bool left_open, bool right_open) {
    const Sample a = evaluate(*from, 0), b = evaluate(*to, 0);
    const bool known = is_constant(*from) && is_constant(*to) && a.defined && b.defined &&
                       a.approximate.imag() == 0 && b.approximate.imag() == 0;
    const long double low = a.approximate.real(), high = b.approximate.real();
    if (known && left_open == right_open && (left_open ? high <= low : high < low))
      return make(Kind::tuple, "", {from, to});
    if (known && high == low && !left_open && !right_open) return finite_set({from});
    if (known && high <= low) return make(Kind::named_set, "empty");
    Value value;
    value.kind = Kind::interval;
    value.parts = {from, to};
    value.left_open = left_open || (known && std::isinf(low));
    value.right_open = right_open || (known && std::isinf(high));
    return std::make_shared<const Value>(std::move(value));
  }

  static Term finite_set(std::vector<Term> parts) {
    std::vector<Term> kept;
    for (Term& part : parts) {
      const bool twice =
          std::ranges::any_of(kept, [&](const Term& other) { return identical(*part, *other); });
      if (!twice) kept.push_back(std::move(part));
    }
    return kept.empty() ? make(Kind::named_set, "empty")
                        : make(Kind::finite_set, "", std::move(kept));
  }

  static std::vector<Term> flat(const List& list) {
    std::vector<Term> parts;
    for (const auto& group : list) parts.insert(parts.end(), group.begin(), group.end());
    return parts;
  }

  static Term as_one(const List& list) {
    if (list.size() == 1) return list[0].size() == 1 ? list[0][0] : finite_set(list[0]);
    const bool single =
        std::ranges::all_of(list, [](const auto& group) { return group.size() == 1; });
    if (single) return finite_set(flat(list));
    std::vector<Term> tuples;
    for (const auto& group : list) tuples.push_back(make(Kind::tuple, "", group));
    return finite_set(std::move(tuples));
  }

  List elements(Relations relations) {
    List list(1);
    do {
      if (!list.back().empty()) list.emplace_back();
      do element(relations, list.back());
      while (accept(","));
    } while (accept(";"));
    return list;
  }

  void element(Relations relations, std::vector<Term>& out) {
    const Level level(*this);
    if (accept("pm")) {
      const Term value = expression();
      out.push_back(negative(value));
      out.push_back(value);
      return;
    }
    if (const Term set = whole_set()) {
      out.push_back(set);
      return;
    }
    const size_t begin = at_;
    const Term left = expression();
    if (accept("pm")) {
      const Term right = expression();
      out.push_back(sum(left, right));
      out.push_back(sum(left, negative(right)));
      return;
    }
    at_ = begin;
    out.push_back(relations == Relations::allowed ? relation() : expression());
  }

  // A set that is an element of its own: what follows is a comma or an end.
  Term whole_set() {
    const bool bracket = opens(here()) && (opens_list() || is("{") || is("\\{"));
    const size_t begin = at_;
    try {
      const Term set = bracket ? set_atom() : named_set();
      if (set && (at_end() || closes(here()) || is(",") || is(";"))) return set;
    } catch (const Unreadable&) {}
    at_ = begin;
    return nullptr;
  }

  Term relation() {
    std::vector<Term> links;
    Term last = expression();
    for (;;) {
      std::string operation = here().kind == TokenKind::operation ? here().text : "";
      if (operation == "==") operation = "=";
      if (operation == "approx") {
        ++at_;
        const Term right = expression();
        if (last->kind == Kind::symbol) last = right;
        continue;
      }
      const std::initializer_list<std::string_view> known{"=", "!=", "<", "<=", ">", ">="};
      if (std::ranges::find(known, operation) == known.end()) break;
      ++at_;
      const Term right = expression();
      links.push_back(make(Kind::relation, operation, {last, right}));
      last = right;
    }
    if (links.empty()) return last;
    return links.size() == 1 ? links[0] : make(Kind::chain, "", std::move(links));
  }
};

}  // namespace

Term parse_latex(std::string_view latex) {
  if (latex.size() > longest_latex) return nullptr;
  try {
    return Parser(tokens_of(latex)).answer(latex);
  } catch (const Unreadable&) { return nullptr; }
}

}  // namespace trireme::reward::math
