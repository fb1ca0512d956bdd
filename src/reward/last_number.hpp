// The number that a text ends with, for rule = "number".
#pragma once

#include <optional>
#include <string_view>

#include "trireme/base/decimal.hpp"

namespace trireme::reward {

// The last number, exactly. Thousands may be separated by commas (1,234; Indian: 1,23,456), blanks
// (1 234), apostrophes or LaTeX's thin spaces, millions by full stops too (1.234.567); a sign
// counts unless something that it could be subtracted from is in front of it, also before a
// currency (-$5). nullopt where the last one is no number but a part of something else: a fraction
// (3/4), a time or ratio (12:30), a version (1.5.2), a date (2026-11-26), a power (10^3).
std::optional<base::Decimal> last_number(std::string_view text);

// The text is one number and nothing else.
std::optional<base::Decimal> whole_number(std::string_view text);

}  // namespace trireme::reward
