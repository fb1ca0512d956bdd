// JSON-lines files: reading with positions, and writing of one-line objects.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "trireme/base/files.hpp"

namespace trireme::data {

// Reads a regular file line by line. A BOM, CRLF, a missing last newline and blank lines are
// accepted. Throws UserError with file:line: input_missing (no such file, directory, FIFO, no
// records at all), permission, bad_data (something else than JSON lines, as Parquet or a compressed
// file; not UTF-8: with column; longer than 64 MiB; file changed
// while it was read), io_error.
class JsonlReader {
 public:
  explicit JsonlReader(const std::filesystem::path& file);

  // The next line that is not blank, without its end; valid until the next call. nullopt at the end
  // of the file.
  std::optional<std::string_view> next();
  int64_t line() const { return line_; }  // number of the line that next() returned, from 1
  // "file:line", for messages
  std::string where() const;

 private:
  bool fill();
  bool read_line();
  void check_unchanged() const;

  std::filesystem::path file_;
  base::FileDescriptor in_;
  std::string buffer_;
  size_t at_ = 0;       // in the buffer
  uintmax_t size_ = 0;  // at opening
  std::filesystem::file_time_type changed_;
  std::string text_;
  int64_t line_ = 0;
  int64_t records_ = 0;
};

// Builds one JSON object on one line. Strings must be UTF-8; bytes that are not become U+FFFD. A
// number that is not finite is written as null.
class JsonObject {
 public:
  JsonObject& add(std::string_view key, std::string_view value);
  JsonObject& add(std::string_view key, const char* value) {
    return add(key, std::string_view(value));
  }
  JsonObject& add(std::string_view key, const std::string& value) {
    return add(key, std::string_view(value));
  }
  JsonObject& add(std::string_view key, bool value);
  JsonObject& add(std::string_view key, int value) { return add(key, int64_t{value}); }
  JsonObject& add(std::string_view key, int64_t value);
  JsonObject& add(std::string_view key, double value);
  JsonObject& add(std::string_view key, std::span<const int32_t> values);
  JsonObject& add(std::string_view key, std::span<const float> values);
  // `json` is the text of a JSON value and is copied as it is.
  JsonObject& add_json(std::string_view key, std::string_view json);
  // "{...}" without a newline
  std::string str() const { return body_.empty() ? "{}" : "{" + body_ + "}"; }

 private:
  std::string& key(std::string_view name);
  std::string body_;
};

}  // namespace trireme::data
