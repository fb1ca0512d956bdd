#include "gguf_parser.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"

namespace trireme::model {
namespace {

// Of everything before the tensors' data: vocabularies, merges, templates. The largest known has 20
// MiB; its values take at most eight times as much memory.
constexpr uint64_t max_header = uint64_t{256} << 20;
constexpr uint64_t max_metadata = 1 << 16;
constexpr uint64_t max_tensors = 1 << 20;
constexpr uint64_t max_key_bytes = 65535;
constexpr uint32_t max_dimensions = 4;

enum class ValueType : uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};

// Takes values from the file's bytes, in order, and never beyond them.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }
  [[noreturn]] void fail(const std::string& problem) const {
    throw UserError(ExitCode::bad_data,
                    base::text(file_, ": ", problem, " at byte ", position_,
                               ": the file is damaged or not what it claims to be"));
  }

  template <class T>
  T take() {
    if (left() < sizeof(T))
      fail(base::text("the file ends within its header, or the header is longer than ", max_header,
                      " bytes,"));
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof value);
    position_ += sizeof value;
    return value;
  }

  std::string take_string(uint64_t limit) {
    const auto length = take<uint64_t>();
    if (length > limit || length > left()) fail(base::text("a text of ", length, " bytes"));
    std::string out(reinterpret_cast<const char*>(bytes_.data()) + position_, length);
    position_ += length;
    return out;
  }

  // A count whose items take at least `item_bytes` each.
  uint64_t take_count(uint64_t limit, uint64_t item_bytes, const char* what) {
    const auto count = take<uint64_t>();
    if (count > limit || count > left() / item_bytes) fail(base::text(count, " ", what));
    return count;
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& file_;
  uint64_t position_ = 0;
};

// The decimal that a person wrote: fp32 1e-5 becomes 1e-5, not 9.99999974738e-06.
double widen(float value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  double out = value;
  std::from_chars(buffer, end, out);
  return out;
}

int64_t take_integer(Cursor& cursor, ValueType type) {
  switch (type) {
    case ValueType::u8: return cursor.take<uint8_t>();
    case ValueType::i8: return cursor.take<int8_t>();
    case ValueType::u16: return cursor.take<uint16_t>();
    case ValueType::i16: return cursor.take<int16_t>();
    case ValueType::u32: return cursor.take<uint32_t>();
    case ValueType::i32: return cursor.take<int32_t>();
    case ValueType::i64: return cursor.take<int64_t>();
    case ValueType::u64: {
      const auto value = cursor.take<uint64_t>();
      if (!std::in_range<int64_t>(value)) cursor.fail(base::text("the number ", value));
      return static_cast<int64_t>(value);
    }
    default: cursor.fail(base::text("a value of unknown type ", static_cast<uint32_t>(type)));
  }
}

bool take_bool(Cursor& cursor) {
  const auto value = cursor.take<uint8_t>();
  if (value > 1) cursor.fail(base::text("a boolean of ", unsigned{value}));
  return value == 1;
}

double take_real(Cursor& cursor, ValueType type) {
  return type == ValueType::f32 ? widen(cursor.take<float>()) : cursor.take<double>();
}

template <class T, class Take>
std::vector<T> take_items(uint64_t count, Take&& take) {
  std::vector<T> out;
  out.reserve(count);
  for (uint64_t i = 0; i < count; ++i) out.push_back(take());
  return out;
}

uint64_t smallest_size(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean: return 1;
    case ValueType::u16:
    case ValueType::i16: return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32: return 4;
    default: return 8;
  }
}

GgufValue take_array(Cursor& cursor) {
  const auto type = static_cast<ValueType>(cursor.take<uint32_t>());
  if (type == ValueType::array) cursor.fail("an array of arrays");
  if (type > ValueType::f64)
    cursor.fail(base::text("an array of unknown type ", static_cast<uint32_t>(type)));
  const uint64_t count = cursor.take_count(UINT32_MAX, smallest_size(type), "array elements");
  switch (type) {
    case ValueType::string:
      return take_items<std::string>(count, [&] { return cursor.take_string(cursor.left()); });
    case ValueType::boolean: return take_items<bool>(count, [&] { return take_bool(cursor); });
    case ValueType::f32:
    case ValueType::f64: return take_items<double>(count, [&] { return take_real(cursor, type); });
    default: return take_items<int64_t>(count, [&] { return take_integer(cursor, type); });
  }
}

GgufValue take_value(Cursor& cursor) {
  const auto type = static_cast<ValueType>(cursor.take<uint32_t>());
  switch (type) {
    case ValueType::array: return take_array(cursor);
    case ValueType::string: return cursor.take_string(cursor.left());
    case ValueType::boolean: return take_bool(cursor);
    case ValueType::f32:
    case ValueType::f64: return take_real(cursor, type);
    default: return take_integer(cursor, type);
  }
}

GgufTensorInfo take_tensor(Cursor& cursor, const std::string& file) {
  GgufTensorInfo tensor;
  tensor.name = cursor.take_string(max_key_bytes);
  const auto dimensions = cursor.take<uint32_t>();
  if (dimensions > max_dimensions)
    cursor.fail(base::text("the tensor '", tensor.name, "' has ", dimensions, " dimensions"));
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto extent = cursor.take<uint64_t>();
    if (extent == 0 || !std::in_range<int64_t>(extent))
      cursor.fail(base::text("the tensor '", tensor.name, "' has a dimension of ", extent));
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
  }
  tensor.type = cursor.take<uint32_t>();
  tensor.begin = cursor.take<uint64_t>();
  const GgufType* format = find_gguf_type(tensor.type);
  VALIDATE(format, ExitCode::bad_data, file, ": the tensor '", tensor.name, "' has the type ",
           gguf_type_name(tensor.type),
           ", which cannot be read: use a file in F32, F16, BF16, Q8_0, Q5_0, Q5_1, Q4_0 or Q4_1");
  uint64_t blocks = 1;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    auto extent = static_cast<uint64_t>(tensor.shape[i]);
    if (i + 1 == tensor.shape.size()) {
      if (extent % format->elements != 0)
        cursor.fail(
            base::text("rows of '", tensor.name, "' are no whole blocks of ", format->elements));
      extent /= format->elements;
    }
    if (__builtin_mul_overflow(blocks, extent, &blocks))
      cursor.fail(base::text("the shape of '", tensor.name, "' overflows"));
  }
  int64_t elements = 1;
  for (const int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(elements, extent, &elements))
      cursor.fail(base::text("the shape of '", tensor.name, "' overflows"));
  }
  if (__builtin_mul_overflow(blocks, uint64_t{format->bytes}, &tensor.bytes))
    cursor.fail(base::text("the size of '", tensor.name, "' overflows"));
  return tensor;
}

uint64_t alignment_of(const GgufHeader& header, const std::string& file) {
  const auto found = header.metadata.find("general.alignment");
  if (found == header.metadata.end()) return 32;
  const auto* value = std::get_if<int64_t>(&found->second);
  VALIDATE(value && *value >= 8 && *value <= (1 << 20) && (*value & (*value - 1)) == 0,
           ExitCode::bad_data, file,
           ": general.alignment must be a power of two from 8 to 1048576");
  return static_cast<uint64_t>(*value);
}

// From offsets in the data to bytes of the file, inside of it and without overlap.
void place_tensors(GgufHeader& header, uint64_t header_end, uint64_t file_bytes,
                   const std::string& file) {
  const uint64_t alignment = alignment_of(header, file);
  const uint64_t data = base::round_up(header_end, alignment);
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (auto& tensor : header.tensors) {
    VALIDATE(tensor.begin % alignment == 0, ExitCode::bad_data, file, ": the tensor '", tensor.name,
             "' is not aligned to ", alignment, " bytes");
    uint64_t end = 0;
    const bool overflows = __builtin_add_overflow(tensor.begin, data, &tensor.begin) ||
                           __builtin_add_overflow(tensor.begin, tensor.bytes, &end);
    VALIDATE(!overflows && end <= file_bytes, ExitCode::bad_data, file, ": the tensor '",
             tensor.name, "' lies beyond the end of the file (", file_bytes,
             " bytes): the file is truncated");
    if (tensor.bytes > 0) ranges.emplace_back(tensor.begin, end);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    VALIDATE(ranges[i].first >= ranges[i - 1].second, ExitCode::bad_data, file,
             ": two tensors overlap at byte ", ranges[i].first);
  }
}

}  // namespace

GgufHeader parse_gguf(std::span<const std::byte> bytes, const std::string& file) {
  VALIDATE(bytes.size() >= 24 && std::memcmp(bytes.data(), "GGUF", 4) == 0, ExitCode::bad_data,
           file, ": this is no GGUF file");
  Cursor cursor(bytes.subspan(4, std::min<size_t>(bytes.size() - 4, max_header)), file);
  GgufHeader header;
  header.version = cursor.take<uint32_t>();
  VALIDATE(header.version == 2 || header.version == 3, ExitCode::bad_data, file, ": GGUF version ",
           header.version, (header.version & 0xFFFFu) == 0 ? " (a big-endian file)" : "",
           " cannot be read: use version 2 or 3, little-endian");
  const uint64_t tensors = cursor.take<uint64_t>();
  if (tensors > max_tensors) cursor.fail(base::text(tensors, " tensors"));
  const uint64_t entries = cursor.take_count(max_metadata, 13, "metadata entries");
  for (uint64_t i = 0; i < entries; ++i) {
    const std::string key = cursor.take_string(max_key_bytes);
    if (!header.metadata.emplace(key, take_value(cursor)).second)
      cursor.fail(base::text("the key '", key, "' a second time"));
  }
  std::set<std::string> names;
  for (uint64_t i = 0; i < tensors; ++i) {
    header.tensors.push_back(take_tensor(cursor, file));
    const auto& name = header.tensors.back().name;
    if (!names.insert(name).second)
      cursor.fail(base::text("the tensor '", name, "' a second time"));
  }
  place_tensors(header, cursor.position() + 4, bytes.size(), file);
  return header;
}

}  // namespace trireme::model
