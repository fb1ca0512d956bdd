// Texts of models and data for a page.
#pragma once

#include <string>
#include <string_view>

namespace trireme::report {

// Makes a text safe to show: bytes that are not UTF-8 become U+FFFD, control characters other than
// line ends and tabs become U+2400 and on, characters that change the direction their number.
std::string visible(std::string_view text);

// As characters of an element or of a quoted attribute: visible(), and markup is escaped.
std::string html(std::string_view text);

// A path as the target of a link.
std::string link_target(std::string_view path);

// 0.731, 12.3k, 1.2e-05: four digits at most.
std::string short_number(double value);

enum class Unit { number, share, seconds, bytes, tokens };
// With its unit: "12 %", "3.1 s", "1.5 GiB".
std::string with_unit(double value, Unit unit);

}  // namespace trireme::report
