// JSON text from files: depth and position are checked before anything is built.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace trireme::text {

using Json = nlohmann::json;                 // sorted keys, fast look-up
using OrderedJson = nlohmann::ordered_json;  // keys in the order of the file; for small objects

// Where a text starts, for messages "file:line:column: ...".
struct TextPlace {
  std::string file;
  int64_t line = 1;
};

// Parse a complete JSON text. Throw UserError(bad_data) with file:line:column: not UTF-8, nested
// deeper than 128, not JSON, a number out of range, a key twice in one object (parse_record only:
// HF files are read as Python does).
Json parse_json(std::string_view text, const TextPlace& place);
//
// Numbers::exact: integers beyond 64 bits, and decimals that a double would change, become binary
// values that hold their digits; dump() and kind_of() know them.
enum class Numbers { as_double, exact };
// Repeated::last: of a key twice in one object the last one counts, as in Python.
enum class Repeated { refused, last };
OrderedJson parse_record(std::string_view text, const TextPlace& place,
                         Numbers numbers = Numbers::as_double,
                         Repeated repeated = Repeated::refused);

// As JSON without blanks.
std::string dump(const OrderedJson& value);
// A text as it is, other values as JSON; labels and columns are compared in this form.
std::string text_or_json(const OrderedJson& value);

// A whole JSON file of at most `limit` bytes.
Json read_json_file(const std::string& file, uint64_t limit);

// "object", "string", ... for messages
std::string kind_of(const Json& value);
std::string kind_of(const OrderedJson& value);

}  // namespace trireme::text
