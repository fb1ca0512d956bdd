#include "slab_writer.hpp"

#include <fcntl.h>

#include <span>

#include "file_steps.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::checkpoint {
namespace {

constexpr int64_t writeback_bytes = int64_t{16} << 20;

// Where row `row`, column `column` of a dataset lies in the file.
int64_t file_offset(const IndexEntry& entry, int64_t row, int64_t column) {
  return entry.offset + (row * entry.columns() + column) * size_of(entry.type);
}

// Calls f(file offset, offset in the dense rectangle, bytes) for each consecutive range: one for whole rows.
template <class F>
void for_each_range(const IndexEntry& entry, const base::Block& block, F&& f) {
  const int64_t row_bytes = block.columns * size_of(entry.type);
  if (block.columns == entry.columns()) {
    f(file_offset(entry, block.row, 0), int64_t{0}, block.rows * row_bytes);
    return;
  }
  for (int64_t r = 0; r < block.rows; ++r) f(file_offset(entry, block.row + r, block.column), r * row_bytes, row_bytes);
}

}  // namespace

SlabWriter::SlabWriter(const std::filesystem::path& path, const std::function<void(const char*)>& beat)
    : path_(path), fd_(open_for_writing(path)), beat_(beat) {}

WrittenSlab SlabWriter::write(const IndexEntry& entry, const base::Block& block, const void* data) {
  WrittenSlab out{&entry, block, {}};
  const Pieces pieces(block, size_of(entry.type));
  const auto* next = static_cast<const std::byte*>(data);
  for (int64_t p = 0; p < pieces.count(); ++p) {
    const base::Block piece = pieces.block(p);
    const int64_t bytes = piece.elements() * size_of(entry.type);
    out.digests.push_back(xxh3(std::span(next, static_cast<size_t>(bytes))));
    for_each_range(entry, piece, [&](int64_t offset, int64_t at, int64_t count) { write_range(offset, next + at, count); });
    next += bytes;
    if (beat_) beat_("checkpoint: write");
  }
  return out;
}

void SlabWriter::write_range(int64_t offset, const std::byte* data, int64_t bytes) {
  write_at(fd_.get(), static_cast<uint64_t>(offset), std::span(data, static_cast<size_t>(bytes)), path_);
  bytes_ += bytes;
  start_writeback(offset, bytes);
}

// The device works while the next pieces are copied; without this all of it would wait for the fsync.
void SlabWriter::start_writeback(int64_t offset, int64_t bytes) {
  if (offset != pending_end_) {
    ::sync_file_range(fd_.get(), pending_begin_, pending_end_ - pending_begin_, SYNC_FILE_RANGE_WRITE);
    pending_begin_ = offset;
  }
  pending_end_ = offset + bytes;
  if (pending_end_ - pending_begin_ < writeback_bytes) return;
  ::sync_file_range(fd_.get(), pending_begin_, pending_end_ - pending_begin_, SYNC_FILE_RANGE_WRITE);
  pending_begin_ = pending_end_;
}

void SlabWriter::sync_and_close() {
  sync_descriptor(fd_.get(), path_);
  close_file(std::move(fd_), path_);
}

void read_piece(int fd, const std::filesystem::path& path, const IndexEntry& entry, const base::Block& piece, std::byte* into) {
  for_each_range(entry, piece, [&](int64_t offset, int64_t at, int64_t count) {
    base::read_at(fd, static_cast<uint64_t>(offset), std::span(into + at, static_cast<size_t>(count)), path);
  });
}

void read_back_one(const std::filesystem::path& path, const std::vector<WrittenSlab>& slabs, uint64_t seed) {
  size_t pieces = 0;
  for (const WrittenSlab& slab : slabs) pieces += slab.digests.size();
  if (pieces == 0) return;
  auto chosen = static_cast<size_t>(base::uniform(seed, base::Stream::test, 0, 0) * static_cast<float>(pieces));
  if (chosen >= pieces) chosen = pieces - 1;
  for (const WrittenSlab& slab : slabs) {
    if (chosen >= slab.digests.size()) {
      chosen -= slab.digests.size();
      continue;
    }
    const base::Block piece = Pieces(slab.block, size_of(slab.entry->type)).block(static_cast<int64_t>(chosen));
    const base::FileDescriptor fd = base::open_read(path);
    const int64_t begin = file_offset(*slab.entry, piece.row, piece.column);
    const int64_t end = file_offset(*slab.entry, piece.row + piece.rows - 1, piece.column + piece.columns);
    ::posix_fadvise(fd.get(), begin, end - begin, POSIX_FADV_DONTNEED);  // clean after the fsync: the read goes to the device
    std::vector<std::byte> bytes(static_cast<size_t>(piece.elements() * size_of(slab.entry->type)));
    read_piece(fd.get(), path, *slab.entry, piece, bytes.data());
    VALIDATE(xxh3(bytes) == slab.digests[chosen], ExitCode::io_error, path.string(), ": ", slab.entry->path, " reads back differently from row ",
             piece.row, " (the file system lost or changed what was written)");
    return;
  }
}

}  // namespace trireme::checkpoint
