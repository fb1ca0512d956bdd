// Shared by filters and methods of texts.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja_call.hpp"

namespace trireme::text::jinja {

enum class Side { left, right, both };

// text.strip(chars): argument 0, blanks without it.
std::string stripped(const Arguments& arguments, std::string_view text, Side side);
// text.replace(from, to, count); all where count is negative.
std::string replaced(const Arguments& arguments, const std::string& text, const std::string& from,
                     const std::string& to, int64_t count);
// text.split() without a separator, at most `most` times where that is not negative.
List words_of(const Arguments& arguments, std::string_view text, int64_t most = -1);
// text.splitlines(keep).
List lines_of(const Arguments& arguments, std::string_view text, bool keep);
// text.ljust, rjust (filled on the left) and center.
std::string padded(const Arguments& arguments, const std::string& text, int64_t width,
                   const std::string& fill, Side filled);

}  // namespace trireme::text::jinja
