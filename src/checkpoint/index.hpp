// The index of a checkpoint: where each dataset lies in data.h5, which rectangles the ranks of the
// save wrote, and the digests of their pieces.
//
// A slab is the rectangle of one rank; a piece is a group of its rows of about 1/16 of the slab, at
// least 256 KiB and at most 4 MiB: small enough that a reader at another rank count reads little
// beyond its own rectangle, large enough that 16 bytes of digest a piece do not matter (1/16,384 at
// worst).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "digest.hpp"
#include "trireme/base/shard_layout.hpp"
#include "trireme/comm/comm.hpp"

namespace trireme::checkpoint {

enum class StoredType : uint8_t { u8, i32, i64, u64, f32, f64, bf16, text };
StoredType stored_type(comm::DType type);
comm::DType element_type(StoredType type);  // text: u8
int64_t size_of(StoredType type);
const char* to_string(StoredType type);

struct Slab {
  base::Block block;
  size_t first_digest = 0;  // in IndexEntry::digests
};

struct IndexEntry {
  std::string path;
  StoredType type = StoredType::u8;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // of element 0 in data.h5
  std::vector<Slab> slabs;
  std::vector<Digest> digests;

  // The matrix view of base/shard_layout.hpp.
  int64_t rows() const;
  int64_t columns() const;
  int64_t elements() const { return rows() * columns(); }
  int64_t bytes() const { return elements() * size_of(type); }
};

// Geometry of the pieces of a slab, the same for writer and reader.
class Pieces {
 public:
  Pieces(const base::Block& slab, int64_t element_bytes);
  int64_t count() const { return count_; }
  base::Block block(int64_t piece) const;  // in the tensor's rows and columns
  // Pieces that hold rows [row, row + rows) of the tensor (which must lie in the slab).
  int64_t first_with(int64_t row) const { return (row - slab_.row) / rows_; }

 private:
  base::Block slab_;
  int64_t rows_ = 1;
  int64_t count_ = 0;
};

struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
};
// What of [0, file_bytes) belongs to no dataset: the HDF5 metadata. Throws bad_data when datasets
// overlap or pass the end.
std::vector<ByteRange> metadata_ranges(const std::vector<IndexEntry>& entries, int64_t file_bytes);

std::string to_bytes(const std::vector<IndexEntry>& entries);
// Throws bad_data, naming `name`, when the text is malformed: sizes are checked before anything is
// allocated.
std::vector<IndexEntry> index_from_bytes(std::string_view bytes, const std::string& name);

// Throws bad_data unless the slabs tile the dataset: no element missing, none twice.
void check_tiling(const IndexEntry& entry);

}  // namespace trireme::checkpoint
