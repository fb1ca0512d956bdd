#include "slab_writer.hpp"

#include <fcntl.h>

#include <algorithm>
#include <span>
#include <utility>

#include "file_steps.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"

namespace trireme::checkpoint {
namespace {

constexpr int64_t writeback_bytes = int64_t{16} << 20;

// Calls f(file offset, offset in the dense rectangle, bytes) for each consecutive range: one for
// whole rows.
template <class F>
void for_each_range(const IndexEntry& entry, const base::Block& block, F&& f) {
  const int64_t row_bytes = block.columns * size_of(entry.type);
  if (block.columns == entry.columns()) {
    f(file_offset(entry, block.row, 0), int64_t{0}, block.rows * row_bytes);
    return;
  }
  for (int64_t r = 0; r < block.rows; ++r)
    f(file_offset(entry, block.row + r, block.column), r * row_bytes, row_bytes);
}

int64_t round_down(int64_t value, int64_t unit) { return value / unit * unit; }

}  // namespace

int64_t file_offset(const IndexEntry& entry, int64_t row, int64_t column) {
  return entry.offset + (row * entry.columns() + column) * size_of(entry.type);
}

SlabWriter::SlabWriter(const std::filesystem::path& path, int64_t page_bytes,
                       const std::function<void(const char*)>& beat)
    : path_(path), page_(page_bytes), fd_(open_for_writing(path)), beat_(beat) {}

WrittenSlab SlabWriter::write(const IndexEntry& entry, const base::Block& block, const void* data) {
  WrittenSlab out{&entry, block, {}};
  const Pieces pieces(block, size_of(entry.type));
  const auto* next = static_cast<const std::byte*>(data);
  for (int64_t p = 0; p < pieces.count(); ++p) {
    const base::Block piece = pieces.block(p);
    const int64_t bytes = piece.elements() * size_of(entry.type);
    out.digests.push_back(xxh3(std::span(next, static_cast<size_t>(bytes))));
    for_each_range(entry, piece, [&](int64_t offset, int64_t at, int64_t count) {
      write_range(offset, next + at, count);
    });
    next += bytes;
    if (beat_) beat_("checkpoint: write");
  }
  return out;
}

void SlabWriter::write_range(int64_t offset, const std::byte* data, int64_t bytes) {
  bytes_ += bytes;
  const int64_t taken = extend_edge(offset, data, bytes);
  const int64_t begin = offset + taken;
  const int64_t end = offset + bytes;
  const int64_t first_page = std::min(end, base::round_up(begin, page_));
  const int64_t last_page = std::max(first_page, round_down(end, page_));
  keep_edge(begin, data + taken, first_page - begin);
  write_pages(first_page, data + (first_page - offset), last_page - first_page);
  keep_edge(last_page, data + (last_page - offset), end - last_page);
}

// Pieces follow each other, so the page at the end of one is mostly completed by the next.
int64_t SlabWriter::extend_edge(int64_t offset, const std::byte* data, int64_t bytes) {
  if (edges_.empty() || edges_.back().end() != offset || offset % page_ == 0) return 0;
  PageEdge& edge = edges_.back();
  const int64_t taken = std::min(bytes, base::round_up(offset, page_) - offset);
  edge.bytes.append(reinterpret_cast<const char*>(data), static_cast<size_t>(taken));
  if (static_cast<int64_t>(edge.bytes.size()) == page_) {
    const PageEdge page = std::move(edge);
    edges_.pop_back();
    write_pages(page.offset, reinterpret_cast<const std::byte*>(page.bytes.data()), page_);
  }
  return taken;
}

void SlabWriter::keep_edge(int64_t offset, const std::byte* data, int64_t bytes) {
  if (bytes > 0)
    edges_.push_back(
        {offset, std::string(reinterpret_cast<const char*>(data), static_cast<size_t>(bytes))});
}

void SlabWriter::write_pages(int64_t offset, const std::byte* data, int64_t bytes) {
  if (bytes <= 0) return;
  write_at(fd_.get(), static_cast<uint64_t>(offset), std::span(data, static_cast<size_t>(bytes)),
           path_);
  start_writeback(offset, bytes);
}

void SlabWriter::write_edges(const std::vector<PageEdge>& edges) {
  for (const PageEdge& edge : edges) {
    write_at(fd_.get(), static_cast<uint64_t>(edge.offset), std::as_bytes(std::span(edge.bytes)),
             path_);
    if (beat_) beat_("checkpoint: write");
  }
}

// The device works while the next pieces are copied; without this all of it would wait for the
// fsync.
void SlabWriter::start_writeback(int64_t offset, int64_t bytes) {
  if (offset != pending_end_) {
    ::sync_file_range(fd_.get(), pending_begin_, pending_end_ - pending_begin_,
                      SYNC_FILE_RANGE_WRITE);
    pending_begin_ = offset;
  }
  pending_end_ = offset + bytes;
  if (pending_end_ - pending_begin_ < writeback_bytes) return;
  ::sync_file_range(fd_.get(), pending_begin_, pending_end_ - pending_begin_,
                    SYNC_FILE_RANGE_WRITE);
  pending_begin_ = pending_end_;
}

void SlabWriter::sync_and_close() {
  sync_descriptor(fd_.get(), path_);
  close_file(std::move(fd_), path_);
}

void read_piece(int fd, const std::filesystem::path& path, const IndexEntry& entry,
                const base::Block& piece, std::byte* into) {
  for_each_range(entry, piece, [&](int64_t offset, int64_t at, int64_t count) {
    base::read_at(fd, static_cast<uint64_t>(offset),
                  std::span(into + at, static_cast<size_t>(count)), path);
  });
}

}  // namespace trireme::checkpoint
