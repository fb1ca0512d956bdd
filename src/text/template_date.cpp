// The date that chat templates see: a day without a time, formatted as Python's strftime does.
#include <array>
#include <chrono>
#include <ctime>
#include <optional>
#include <string>

#include "text/jinja_call.hpp"
#include "trireme/base/error.hpp"
#include "trireme/text/chat_template.hpp"

namespace trireme::text {
namespace {

std::optional<std::chrono::year_month_day> parse_date(const std::string& text) {
  const auto digits = [&](size_t from, size_t count) {
    int value = 0;
    for (size_t i = from; i < from + count; ++i) {
      if (text[i] < '0' || text[i] > '9') return -1;
      value = value * 10 + (text[i] - '0');
    }
    return value;
  };
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return std::nullopt;
  const int year = digits(0, 4), month = digits(5, 2), day = digits(8, 2);
  if (year < 1000 || month < 0 || day < 0) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  return date.ok() ? std::optional(date) : std::nullopt;
}

std::tm midnight_of(const std::chrono::year_month_day& date) {
  const std::chrono::sys_days days = date;
  std::tm time{};
  time.tm_year = static_cast<int>(date.year()) - 1900;
  time.tm_mon = static_cast<int>(static_cast<unsigned>(date.month())) - 1;
  time.tm_mday = static_cast<int>(static_cast<unsigned>(date.day()));
  time.tm_wday = static_cast<int>(std::chrono::weekday(days).c_encoding());
  const std::chrono::sys_days new_year = date.year() / std::chrono::January / 1;
  time.tm_yday = static_cast<int>((days - new_year).count());
  return time;
}

// One conversion with its flags, such as %-d.
std::string convert(const std::string& specifier, const std::tm& time) {
  std::array<char, 128> buffer{};
  return {buffer.data(), std::strftime(buffer.data(), buffer.size(), specifier.c_str(), &time)};
}

}  // namespace

void check_date(const std::string& date, const std::string& name, ExitCode code) {
  VALIDATE(parse_date(date).has_value(), code, name, " = \"", date,
           "\" is not a date: give it as YYYY-MM-DD, e.g. 2026-01-31");
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return convert("%Y-%m-%d", local);
}

std::string jinja::strftime_of(const Arguments& arguments, const std::string& date) {
  if (arguments.positional.size() != 1) arguments.fail("takes one format");
  arguments.expect_no_keywords();
  const std::string& format = arguments.text(0);
  arguments.place.charge_text(format.size());
  const auto day = parse_date(date);
  ASSERT(day.has_value());
  const std::tm time = midnight_of(*day);
  std::string out;
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      out += format[at];
      continue;
    }
    const size_t end = format.find_first_not_of("-_0^#", at + 1);
    if (end == std::string::npos) arguments.fail("the format ends inside a conversion");
    const std::string specifier = format.substr(at, end - at + 1);
    constexpr std::string_view known = "aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyY%";
    if (known.find(format[end]) != std::string_view::npos) {
      out += convert(specifier, time);
    } else if (format[end] == 'f') {
      out += "000000";
    } else if (format[end] != 'z' && format[end] != 'Z') {  // a date has no time zone
      arguments.fail("the conversion '" + specifier + "' is not known");
    }
    arguments.place.check_length(out.size());
    at = end;
  }
  return out;
}

}  // namespace trireme::text
