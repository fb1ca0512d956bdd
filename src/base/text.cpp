#include "trireme/base/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace trireme::base {

namespace {

template <class Number>
void append_number(std::string& out, Number value) {
  std::array<char, 24> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  out.append(buffer.data(), result.ptr);
}

void append(std::string& out, const TextPart& part) {
  using Kind = TextPart::Kind;
  switch (part.kind) {
    case Kind::characters: out += part.characters; break;
    case Kind::character: out += part.character; break;
    case Kind::natural: append_number(out, part.natural); break;
    case Kind::integer: append_number(out, part.integer); break;
    case Kind::real: {
      std::array<char, 32> buffer{};
      const int length = std::snprintf(buffer.data(), buffer.size(), "%g", part.real);
      out.append(buffer.data(), static_cast<size_t>(length));
      break;
    }
  }
}

}  // namespace

std::string concatenated(std::span<const TextPart> parts) {
  std::string out;
  for (const TextPart& part : parts) append(out, part);
  return out;
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i) out += separator;
    out += parts[i];
  }
  return out;
}

std::string fixed(double value, int decimals) {
  std::string out(static_cast<size_t>(std::snprintf(nullptr, 0, "%.*f", decimals, value)), '\0');
  std::snprintf(out.data(), out.size() + 1, "%.*f", decimals, value);
  return out;
}

// A value that would be printed as a whole next unit (1024.0 KiB, 60.0 s) goes there.
std::string human_bytes(double bytes) {
  static constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= (unit == 0 ? 1023.5 : 1023.95) && unit + 1 < units.size()) {
    bytes /= 1024;
    ++unit;
  }
  return text(fixed(bytes, unit == 0 ? 0 : 1), " ", units[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds < 999.95e-6) return text(fixed(seconds * 1e6, 1), " us");
  if (seconds < 999.95e-3) return text(fixed(seconds * 1e3, 1), " ms");
  if (seconds < 59.95) return text(fixed(seconds, 1), " s");
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (whole < 3600) return text(whole / 60, " min ", whole % 60, " s");
  return text(whole / 3600, " h ", whole % 3600 / 60, " min");
}

namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  size_t best = std::max<size_t>(2, word.size() / 3) + 1;
  std::string found;
  for (const auto& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best) {
      best = distance;
      found = candidate;
    }
  }
  return found;
}

}  // namespace trireme::base
