// The brackets of a JSON text outside its strings.
#pragma once

#include <cstddef>
#include <string_view>

namespace trireme::text {

// Calls visit(index, character) at each of [ ] { } that is not inside a string, in order, until it
// returns true. Returns that index; npos: it never did.
template <class Visit>
size_t find_bracket(std::string_view text, Visit visit) {
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if ((c == '[' || c == ']' || c == '{' || c == '}') && visit(i, c)) {
      return i;
    }
  }
  return std::string_view::npos;
}

}  // namespace trireme::text
