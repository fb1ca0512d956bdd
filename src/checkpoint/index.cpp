#include "index.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"

namespace trireme::checkpoint {
namespace {

constexpr int64_t smallest_piece = int64_t{256} << 10;
constexpr int64_t largest_piece = int64_t{4} << 20;
constexpr std::string_view magic = "TRIREMEI";
constexpr uint32_t index_version = 1;
constexpr uint32_t max_dimensions = 8;

class ByteWriter {
 public:
  template <class T>
  void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_ += text;
  }
  void put_raw(const void* data, size_t size) {
    bytes_.append(static_cast<const char*>(data), size);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  ByteReader(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}
  template <class T>
  T get() {
    T value{};
    std::memcpy(&value, raw(sizeof value), sizeof value);
    return value;
  }
  std::string get_text() {
    const size_t size = get<uint32_t>();
    return std::string(raw(size), size);
  }
  const char* raw(size_t size) {
    VALIDATE(size <= bytes_.size() - at_, ExitCode::bad_data, name_, " ends at byte ",
             bytes_.size(), " in the middle of an entry");
    const char* out = bytes_.data() + at_;
    at_ += size;
    return out;
  }
  // A count of records of at least `record` bytes each: refused when the rest cannot hold them.
  size_t get_count(size_t record) {
    const uint64_t count = get<uint64_t>();
    VALIDATE(count <= (bytes_.size() - at_) / record, ExitCode::bad_data, name_, " claims ", count,
             " records at byte ", at_, ", more than it holds");
    return static_cast<size_t>(count);
  }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  std::string_view bytes_;
  const std::string& name_;
  size_t at_ = 0;
};

void put_entry(ByteWriter& out, const IndexEntry& entry) {
  out.put_text(entry.path);
  out.put(entry.type);
  out.put(static_cast<uint32_t>(entry.shape.size()));
  for (const int64_t dim : entry.shape) out.put(dim);
  out.put(entry.offset);
  out.put(static_cast<uint64_t>(entry.slabs.size()));
  for (const Slab& slab : entry.slabs) out.put(slab.block);
  out.put(static_cast<uint64_t>(entry.digests.size()));
  out.put_raw(entry.digests.data(), entry.digests.size() * sizeof(Digest));
}

void check_shape(const IndexEntry& entry, const std::string& name) {
  int64_t elements = 1;
  for (const int64_t dim : entry.shape) {
    VALIDATE(dim >= 0, ExitCode::bad_data, name, ": ", entry.path, " has the dimension ", dim);
    elements = base::checked_mul(elements, dim);
  }
  base::checked_mul(elements, size_of(entry.type));
  VALIDATE(entry.offset >= 0, ExitCode::bad_data, name, ": ", entry.path, " has the offset ",
           entry.offset);
}

// Blocks come from a file: each must lie inside its tensor before any arithmetic trusts it.
void check_block(const IndexEntry& entry, const base::Block& block, const std::string& name) {
  const int64_t rows = entry.rows();
  const int64_t columns = entry.columns();
  const bool inside = block.row >= 0 && block.rows > 0 && block.rows <= rows &&
                      block.row <= rows - block.rows && block.column >= 0 && block.columns > 0 &&
                      block.columns <= columns && block.column <= columns - block.columns;
  VALIDATE(inside, ExitCode::bad_data, name, ": a slab of ", entry.path, " lies outside of it");
}

IndexEntry get_entry(ByteReader& in, const std::string& name) {
  IndexEntry entry;
  entry.path = in.get_text();
  const uint8_t type = in.get<uint8_t>();
  VALIDATE(type <= static_cast<uint8_t>(StoredType::text), ExitCode::bad_data, name, ": ",
           entry.path, " has the unknown type ", int{type});
  entry.type = static_cast<StoredType>(type);
  const uint32_t dims = in.get<uint32_t>();
  VALIDATE(dims <= max_dimensions, ExitCode::bad_data, name, ": ", entry.path, " has ", dims,
           " dimensions");
  for (uint32_t d = 0; d < dims; ++d) entry.shape.push_back(in.get<int64_t>());
  entry.offset = in.get<int64_t>();
  check_shape(entry, name);
  const size_t slabs = in.get_count(sizeof(base::Block));
  int64_t digests = 0;
  for (size_t s = 0; s < slabs; ++s) {
    const auto block = in.get<base::Block>();
    check_block(entry, block, name);
    entry.slabs.push_back({block, static_cast<size_t>(digests)});
    digests = base::checked_add(digests, Pieces(block, size_of(entry.type)).count());
  }
  const size_t stored = in.get_count(sizeof(Digest));
  VALIDATE(static_cast<int64_t>(stored) == digests, ExitCode::bad_data, name, ": ", entry.path,
           " has ", stored, " digests where its slabs need ", digests);
  entry.digests.resize(stored);
  const auto* bytes = in.raw(stored * sizeof(Digest));
  if (stored > 0)
    std::memcpy(entry.digests.data(), bytes,
                stored * sizeof(Digest));  // an empty vector's data may be null
  return entry;
}

}  // namespace

StoredType stored_type(comm::DType type) {
  switch (type) {
    case comm::DType::u8: return StoredType::u8;
    case comm::DType::i32: return StoredType::i32;
    case comm::DType::i64: return StoredType::i64;
    case comm::DType::u64: return StoredType::u64;
    case comm::DType::f32: return StoredType::f32;
    case comm::DType::f64: return StoredType::f64;
    case comm::DType::bf16: return StoredType::bf16;
  }
  throw InternalError("an element type without a place in a checkpoint");
}

comm::DType element_type(StoredType type) {
  switch (type) {
    case StoredType::i32: return comm::DType::i32;
    case StoredType::i64: return comm::DType::i64;
    case StoredType::u64: return comm::DType::u64;
    case StoredType::f32: return comm::DType::f32;
    case StoredType::f64: return comm::DType::f64;
    case StoredType::bf16: return comm::DType::bf16;
    case StoredType::u8:
    case StoredType::text: break;
  }
  return comm::DType::u8;
}

int64_t size_of(StoredType type) { return static_cast<int64_t>(comm::size_of(element_type(type))); }

const char* to_string(StoredType type) {
  static constexpr const char* names[] = {"u8", "i32", "i64", "u64", "f32", "f64", "bf16", "text"};
  return names[static_cast<size_t>(type)];
}

int64_t IndexEntry::rows() const { return shape.empty() ? 1 : shape[0]; }

int64_t IndexEntry::columns() const {
  int64_t columns = 1;
  for (size_t d = 1; d < shape.size(); ++d)
    columns = base::checked_mul(columns, shape[d]);  // rows may be 0
  return columns;
}

Pieces::Pieces(const base::Block& slab, int64_t element_bytes) : slab_(slab) {
  if (slab.empty()) return;
  const int64_t row_bytes = base::checked_mul(slab.columns, element_bytes);
  const auto sixteenth = static_cast<uint64_t>(base::checked_mul(slab.rows, row_bytes) / 16);
  const int64_t target =
      std::clamp(static_cast<int64_t>(std::bit_ceil(sixteenth)), smallest_piece, largest_piece);
  rows_ = std::max<int64_t>(1, target / row_bytes);
  count_ = base::ceil_div(slab.rows, rows_);
}

base::Block Pieces::block(int64_t piece) const {
  const int64_t row = piece * rows_;
  return {slab_.row + row, std::min(rows_, slab_.rows - row), slab_.column, slab_.columns};
}

std::vector<ByteRange> metadata_ranges(const std::vector<IndexEntry>& entries, int64_t file_bytes) {
  std::vector<const IndexEntry*> sorted;
  for (const IndexEntry& entry : entries) {
    if (entry.bytes() > 0) sorted.push_back(&entry);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return a->offset < b->offset; });
  std::vector<ByteRange> ranges;
  int64_t at = 0;
  for (const IndexEntry* entry : sorted) {
    VALIDATE(entry->offset >= at && entry->bytes() <= file_bytes - entry->offset,
             ExitCode::bad_data, "dataset ", entry->path,
             " overlaps another one or passes the end of the file");
    if (entry->offset > at) ranges.push_back({at, entry->offset});
    at = entry->offset + entry->bytes();
  }
  if (at < file_bytes) ranges.push_back({at, file_bytes});
  return ranges;
}

std::string to_bytes(const std::vector<IndexEntry>& entries) {
  ByteWriter out;
  out.put_raw(magic.data(), magic.size());
  out.put(index_version);
  out.put(static_cast<uint64_t>(entries.size()));
  for (const IndexEntry& entry : entries) put_entry(out, entry);
  return out.take();
}

std::vector<IndexEntry> index_from_bytes(std::string_view bytes, const std::string& name) {
  ByteReader in(bytes, name);
  VALIDATE(std::string_view(in.raw(magic.size()), magic.size()) == magic, ExitCode::bad_data, name,
           " is not the index of a checkpoint");
  const uint32_t version = in.get<uint32_t>();
  VALIDATE(version == index_version, ExitCode::bad_data, name, " has version ", version,
           ", this program reads ", index_version);
  const size_t count = in.get_count(1);
  std::vector<IndexEntry> entries;
  for (size_t i = 0; i < count; ++i) entries.push_back(get_entry(in, name));
  VALIDATE(in.at_end(), ExitCode::bad_data, name, " has bytes after its last entry");
  return entries;
}

void check_tiling(const IndexEntry& entry) {
  int64_t covered = 0;
  for (const Slab& slab : entry.slabs) covered += slab.block.elements();
  const int64_t elements = entry.elements();
  VALIDATE(covered == elements, ExitCode::bad_data, "the ranks hold ", covered, " elements of ",
           entry.path, ", which has ", elements);
  // Equal sums leave one gap per overlap; sweep over rows to find an overlap. Row shards are
  // disjoint intervals already.
  std::vector<const base::Block*> blocks;
  for (const Slab& slab : entry.slabs) blocks.push_back(&slab.block);
  std::sort(blocks.begin(), blocks.end(),
            [](const auto* a, const auto* b) { return a->row < b->row; });
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (size_t j = i + 1; j < blocks.size() && blocks[j]->row < blocks[i]->row + blocks[i]->rows;
         ++j) {
      VALIDATE(base::intersect(*blocks[i], *blocks[j]).empty(), ExitCode::bad_data,
               "two ranks hold the same elements of ", entry.path, " (rows from ", blocks[j]->row,
               "): only one of them may save them");
    }
  }
}

}  // namespace trireme::checkpoint
