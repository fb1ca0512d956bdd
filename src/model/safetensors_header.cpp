#include "safetensors_header.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"

namespace trireme::model {
namespace {

using nlohmann::json;

// Names from the file as messages show them: short (a 64 KiB name must not flood the terminal),
// without control characters.
std::string shown(std::string_view name) {
  constexpr size_t limit = 120;
  std::string out(name.substr(0, limit));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, '?');
  return name.size() <= limit ? out : out + "...";
}

// nlohmann's DOM silently keeps the last of two equal keys and recurses on deep input; a SAX
// handler sees every key and stops at a depth of its own choosing. This base refuses everything; a
// handler overrides what its format allows.
class StrictHandler : public nlohmann::json_sax<json> {
 public:
  explicit StrictHandler(const std::string& file) : file_(file) {}

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return refuse(base::text("the negative number ", value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return refuse(base::text("the number ", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return refuse("the number " + shown(text));
  }
  bool string(string_t& value) override { return refuse("the text '" + shown(value) + "'"); }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool start_object(size_t) override { return refuse("an object"); }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return refuse("an array"); }
  bool end_array() override { return true; }
  bool key(string_t&) override { return true; }
  bool parse_error(size_t position, const std::string&, const json::exception& error) override {
    const std::string_view reason = error.what();
    const size_t colon = reason.find("] ");
    fail(base::text("malformed JSON at byte ", position, " of the header (",
                    shown(colon == std::string_view::npos ? reason : reason.substr(colon + 2)),
                    ")"));
  }

 protected:
  [[noreturn]] void fail(const std::string& problem) const {
    throw UserError(
        ExitCode::bad_data,
        base::text(file_, ": ", problem, ": the file is damaged or not what it claims to be"));
  }
  bool refuse(const std::string& what) {
    fail(base::text(what, " where ", expected(), " was expected"));
  }
  virtual std::string expected() const = 0;

  const std::string& file_;
};

class HeaderHandler : public StrictHandler {
 public:
  using StrictHandler::StrictHandler;

  bool start_object(size_t) override {
    if (state_ == State::start) return enter(State::top);
    if (state_ == State::value)
      return enter(name_ == "__metadata__" ? State::metadata : State::tensor);
    return refuse("an object");
  }
  bool end_object() override {
    if (state_ == State::tensor) finish_tensor();
    return enter(state_ == State::top ? State::end : State::top);
  }
  bool key(string_t& key) override {
    switch (state_) {
      case State::top: return begin_tensor(key);
      case State::tensor: return begin_field(key);
      case State::metadata:
        metadata_key_ = key;
        if (header.metadata.contains(key))
          fail("the key '" + shown(key) + "' of __metadata__ appears twice");
        return true;
      default: return refuse("a key");
    }
  }
  bool string(string_t& value) override {
    if (state_ == State::metadata) {
      header.metadata.emplace(metadata_key_, value);
      return true;
    }
    if (state_ == State::tensor && field_ == "dtype") {
      entry_.type = find_type(value);
      return true;
    }
    return refuse("the text '" + shown(value) + "'");
  }
  bool start_array(size_t) override {
    if (state_ != State::tensor || field_ == "dtype") return refuse("an array");
    return enter(field_ == "shape" ? State::shape : State::offsets);
  }
  bool end_array() override {
    if (state_ == State::offsets && offsets_ != 2)
      fail(base::text("data_offsets of '", shown(name_), "' has ", offsets_, " numbers, not 2"));
    return enter(State::tensor);
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::shape) return add_dimension(value);
    if (state_ == State::offsets) return add_offset(value);
    return refuse(base::text("the number ", value));
  }

  SafetensorsHeader header;

 private:
  enum class State { start, top, value, tensor, metadata, shape, offsets, end };

  bool enter(State next) {
    state_ = next;
    return true;
  }
  bool begin_tensor(const std::string& name) {
    name_ = name;
    if (name.find('\0') != std::string::npos)
      fail("the tensor name '" + shown(name) + "' contains a NUL byte");
    if (header.entries.contains(name) ||
        (name == "__metadata__" && std::exchange(has_metadata_, true))) {
      fail("the tensor '" + shown(name) + "' appears twice");
    }
    entry_ = {};
    entry_.spec.name = name;
    fields_.clear();
    return enter(State::value);
  }
  bool begin_field(const std::string& field) {
    field_ = field;
    if (field != "dtype" && field != "shape" && field != "data_offsets") {
      fail(
          base::text("the tensor '", shown(name_), "' has the unknown field '", shown(field), "'"));
    }
    if (!fields_.insert(field).second)
      fail(base::text("the field '", field, "' of '", shown(name_), "' appears twice"));
    offsets_ = field == "data_offsets" ? 0 : offsets_;
    return true;
  }
  StoredType find_type(const std::string& word) const {
    const auto type = stored_type_of(word);
    if (!type)
      fail(base::text("the tensor '", shown(name_), "' has the unknown dtype '", shown(word), "'"));
    return *type;
  }
  bool add_dimension(uint64_t value) {
    if (entry_.spec.shape.size() >= safetensors_dimension_limit) {
      fail(base::text("the tensor '", shown(name_), "' has more than ", safetensors_dimension_limit,
                      " dimensions"));
    }
    if (!std::in_range<int64_t>(value))
      fail(base::text("the tensor '", shown(name_), "' has a dimension of ", value));
    entry_.spec.shape.push_back(static_cast<int64_t>(value));
    return true;
  }
  bool add_offset(uint64_t value) {
    if (offsets_ >= 2)
      fail(base::text("data_offsets of '", shown(name_), "' has more than 2 numbers"));
    (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
    return true;
  }
  void finish_tensor() {
    for (const auto* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field))
        fail(base::text("the tensor '", shown(name_), "' has no ", field));
    }
    check_size();
    header.entries.emplace(name_, std::move(entry_));
  }
  // The byte range must be exactly what shape and dtype need, computed without overflow.
  void check_size() const {
    int64_t bits = bits_of(entry_.type);
    for (const int64_t extent : entry_.spec.shape) {
      if (__builtin_mul_overflow(bits, extent, &bits))
        fail(base::text("the shape of '", shown(name_), "' overflows 64 bits"));
    }
    if (bits % 8 != 0)
      fail(base::text("the tensor '", shown(name_), "' does not fill whole bytes"));
    if (entry_.end < entry_.begin)
      fail(base::text("data_offsets of '", shown(name_), "' run backwards"));
    if (entry_.end - entry_.begin != static_cast<uint64_t>(bits) / 8) {
      fail(base::text("the tensor '", shown(name_), "' has ", entry_.end - entry_.begin,
                      " bytes, but its shape and dtype need ", bits / 8));
    }
  }
  std::string expected() const override {
    switch (state_) {
      case State::start: return "the header's object";
      case State::value: return base::text("the description of '", shown(name_), "'");
      case State::tensor: return base::text("the field '", field_, "' of '", shown(name_), "'");
      case State::metadata:
        return base::text("a text for '", shown(metadata_key_), "' of __metadata__");
      case State::shape:
      case State::offsets:
        return base::text("a non-negative integer in '", field_, "' of '", shown(name_), "'");
      default: return "a tensor";
    }
  }

  State state_ = State::start;
  std::string name_, field_, metadata_key_;
  SafetensorsEntry entry_;
  std::set<std::string, std::less<>> fields_;
  int offsets_ = 0;
  bool has_metadata_ = false;
};

// Only "weight_map" counts; what else an index has (metadata with totals of any type) is skipped,
// to a limited depth.
class IndexHandler : public StrictHandler {
 public:
  using StrictHandler::StrictHandler;

  bool null() override { return skip("null"); }
  bool boolean(bool) override { return skip("a boolean"); }
  bool number_integer(number_integer_t) override { return skip("a number"); }
  bool number_unsigned(number_unsigned_t) override { return skip("a number"); }
  bool number_float(number_float_t, const string_t&) override { return skip("a number"); }
  bool string(string_t& value) override {
    if (!in_map()) return skip("a text");
    add(value);
    return true;
  }
  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override {
    return depth_ == 0 || wants_map_ ? refuse("an array") : open();
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    if (depth_ == 1) wants_map_ = key == "weight_map";
    if (depth_ == 1 && wants_map_ && std::exchange(has_map_, true))
      fail("weight_map appears twice");
    if (in_map()) name_ = key;
    return true;
  }

  std::map<std::string, std::string> files;
  bool has_map() const { return has_map_; }

 private:
  static constexpr int depth_limit = 64;
  bool in_map() const { return depth_ == 2 && wants_map_; }
  bool skip(const char* what) { return depth_ == 0 || wants_map_ ? refuse(what) : true; }
  bool open() {
    if (in_map()) return refuse("an object");
    if (++depth_ > depth_limit) fail("nested deeper than 64 levels");
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }
  void add(const std::string& file) {
    const bool plain = !file.empty() && file != "." && file != ".." &&
                       file.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    if (!plain)
      fail(base::text("weight_map puts '", shown(name_), "' into '", shown(file),
                      "', which is not a plain file name"));
    if (!files.emplace(name_, file).second)
      fail(base::text("weight_map lists '", shown(name_), "' twice"));
  }
  std::string expected() const override {
    return in_map() ? base::text("the file name of '", shown(name_), "'")
                    : std::string("an object with a weight_map");
  }

  int depth_ = 0;
  bool wants_map_ = false;
  bool has_map_ = false;
  std::string name_;
};

// Tensors must tile the data exactly: no hole, no overlap, no tail.
void check_tiling(const SafetensorsHeader& header, uint64_t data_bytes, const std::string& file) {
  std::vector<const SafetensorsEntry*> order;
  order.reserve(header.entries.size());
  for (const auto& [name, entry] : header.entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t end = 0;
  for (const auto* entry : order) {
    VALIDATE(entry->begin == end, ExitCode::bad_data, file, ": the tensor '",
             shown(entry->spec.name), "' begins at byte ", entry->begin,
             " of the data, but the one before it ends at ", end,
             " (a hole or an overlap): the file is damaged");
    end = entry->end;
    VALIDATE(end <= data_bytes, ExitCode::bad_data, file, ": the tensor '", shown(entry->spec.name),
             "' ends at byte ", end, " of ", data_bytes, " bytes of data: the file is truncated");
  }
  VALIDATE(end == data_bytes, ExitCode::bad_data, file, ": ", data_bytes - end,
           " bytes follow the last tensor: the file is damaged");
}

void parse(std::string_view text, StrictHandler& handler, const std::string& file) {
  VALIDATE(text.find('\0') == std::string_view::npos, ExitCode::bad_data, file,
           ": a NUL byte in the JSON: the file is damaged");
  json::sax_parse(text.begin(), text.end(), &handler);
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_bytes,
                                           const std::string& file) {
  VALIDATE(!text.empty() && text.front() == '{', ExitCode::bad_data, file,
           ": the header does not begin with '{': this is no safetensors file");
  HeaderHandler handler(file);
  parse(text, handler, file);
  check_tiling(handler.header, data_bytes, file);
  return std::move(handler.header);
}

std::map<std::string, std::string> parse_safetensors_index(std::string_view text,
                                                           const std::string& file) {
  IndexHandler handler(file);
  parse(text, handler, file);
  VALIDATE(handler.has_map(), ExitCode::bad_data, file,
           ": there is no weight_map: this is no index of safetensors files");
  return std::move(handler.files);
}

std::string safetensors_header_text(const std::vector<const base::TensorSpec*>& tensors,
                                    StoredType type) {
  std::string out = R"({"__metadata__":{"format":"pt"})";
  uint64_t offset = 0;
  for (const auto* tensor : tensors) {
    const uint64_t end = base::checked_add(
        offset, base::checked_mul(static_cast<uint64_t>(tensor->elements()), bytes_of(type)));
    out +=
        base::text(",", json(tensor->name).dump(), R"(:{"dtype":")", name_of(type), R"(","shape":)",
                   json(tensor->shape).dump(), R"(,"data_offsets":[)", offset, ",", end, "]}");
    offset = end;
  }
  out += "}";
  out.resize(base::round_up(out.size(), size_t{8}), ' ');
  const uint64_t length = out.size();
  std::string prefix(sizeof length, '\0');
  std::memcpy(prefix.data(), &length, sizeof length);
  return prefix + out;
}

}  // namespace trireme::model
