#include "trireme/data/jsonl.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <system_error>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/foreign_file.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::data {

namespace {

namespace fs = std::filesystem;

constexpr size_t longest_line = size_t{64} << 20;
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

void check_regular(const fs::path& file) {
  VALIDATE(file != "-", ExitCode::input_missing,
           "-: standard input cannot be read twice: write the lines to a file");
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  VALIDATE(status.type() != fs::file_type::not_found, ExitCode::input_missing, file.string(),
           ": no such file: check the path");
  if (status.type() == fs::file_type::none) base::throw_errno(error.value(), "read", file);
  VALIDATE(status.type() != fs::file_type::directory, ExitCode::input_missing, file.string(),
           ": is a folder, expected a file of JSON lines: name the file in it");
  VALIDATE(status.type() == fs::file_type::regular, ExitCode::input_missing, file.string(),
           ": is a pipe or a device, which cannot be read twice: write its content to a file");
}

void append_quoted(std::string_view text, std::string& out) {
  out += '"';
  while (!text.empty()) {
    const text::Utf8Step step = text::utf8_step(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (step.kind != text::Utf8::valid) {
      text::append_utf8(out, 0xFFFD);
    } else if (byte == '"' || byte == '\\') {
      out += '\\';
      out += text[0];
    } else if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (byte == '\r') {
      out += "\\r";
    } else if (byte < 0x20) {
      std::array<char, 8> buffer{};
      std::snprintf(buffer.data(), buffer.size(), "\\u%04x", static_cast<unsigned>(byte));
      out += buffer.data();
    } else {
      out += text.substr(0, step.length);
    }
    text.remove_prefix(step.length);
  }
  out += '"';
}

template <class Number>
void append_number(Number value, std::string& out) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(value)) {
      out += "null";
      return;
    }
  }
  std::array<char, 64> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  out.append(buffer.data(), result.ptr);
}

template <class Number>
void append_list(std::span<const Number> values, std::string& out) {
  out += '[';
  for (size_t i = 0; i < values.size(); ++i) {
    if (i) out += ", ";
    append_number(values[i], out);
  }
  out += ']';
}

}  // namespace

JsonlReader::JsonlReader(const fs::path& file) : file_(file) {
  const base::FileWork work{"open", file};
  check_regular(file);
  in_ = base::open_read(file);
  size_ = fs::file_size(file);
  changed_ = fs::last_write_time(file);
}

std::string JsonlReader::where() const { return base::text(file_.string(), ":", line_); }

// The next bytes of the file into the buffer; false at its end.
bool JsonlReader::fill() {
  constexpr size_t most = size_t{64} << 10;
  const base::FileWork work{"read", file_};
  buffer_.resize(most);
  ssize_t n = 0;
  do { n = ::read(in_.get(), buffer_.data(), most); } while (n < 0 && errno == EINTR);
  if (n < 0) base::throw_errno(errno, "read", file_);
  buffer_.resize(static_cast<size_t>(n));
  at_ = 0;
  return n > 0;
}

// Like getline, but stops at the limit instead of filling the memory.
bool JsonlReader::read_line() {
  text_.clear();
  if (at_ == buffer_.size() && !fill()) return false;
  if (line_ == 0) {
    base::refuse_foreign_file(std::string_view(buffer_).substr(0, base::foreign_file_bytes), file_,
                              base::Expected::json_lines);
  }
  ++line_;
  do {
    const size_t end = std::min(buffer_.find('\n', at_), buffer_.size());
    text_.append(buffer_, at_, end - at_);
    VALIDATE(text_.size() <= longest_line, ExitCode::bad_data, where(),
             ": the line is longer than 64 MiB: is this a file of JSON lines?");
    at_ = end + 1;
    if (end < buffer_.size()) return true;
  } while (fill());
  at_ = buffer_.size();
  return true;
}

std::optional<std::string_view> JsonlReader::next() {
  while (read_line()) {
    std::string_view text = text_;
    if (line_ == 1 && text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.find_first_not_of(" \t") == std::string_view::npos) continue;
    if (const size_t invalid = text::first_invalid_utf8(text); invalid != std::string_view::npos) {
      throw UserError(
          ExitCode::bad_data,
          base::text(where(), ":", invalid + 1, ": not UTF-8: save the file in that encoding"));
    }
    ++records_;
    base::tick();  // a large file takes its time
    return text;
  }
  check_unchanged();
  VALIDATE(records_ > 0, ExitCode::bad_data, file_.string(), ": no records (", size_,
           " bytes): expected one JSON object per line");
  return std::nullopt;
}

void JsonlReader::check_unchanged() const {
  std::error_code error;
  const uintmax_t size = fs::file_size(file_, error);
  const fs::file_time_type changed = error ? changed_ : fs::last_write_time(file_, error);
  if (error) base::throw_errno(error.value(), "look at", file_);
  const bool same = size == size_ && changed == changed_;
  VALIDATE(same, ExitCode::bad_data, file_.string(), ": changed while it was read (", size_,
           " bytes at first, ", size, " at the end): wait until it is complete");
}

std::string& JsonObject::key(std::string_view name) {
  if (!body_.empty()) body_ += ", ";
  append_quoted(name, body_);
  return body_ += ": ";
}

JsonObject& JsonObject::add(std::string_view name, std::string_view value) {
  append_quoted(value, key(name));
  return *this;
}
JsonObject& JsonObject::add(std::string_view name, bool value) {
  return add_json(name, value ? "true" : "false");
}
JsonObject& JsonObject::add(std::string_view name, int64_t value) {
  append_number(value, key(name));
  return *this;
}
JsonObject& JsonObject::add(std::string_view name, double value) {
  append_number(value, key(name));
  return *this;
}
JsonObject& JsonObject::add(std::string_view name, std::span<const int32_t> values) {
  append_list(values, key(name));
  return *this;
}
JsonObject& JsonObject::add(std::string_view name, std::span<const float> values) {
  append_list(values, key(name));
  return *this;
}
JsonObject& JsonObject::add_json(std::string_view name, std::string_view json) {
  key(name) += json;
  return *this;
}

}  // namespace trireme::data
