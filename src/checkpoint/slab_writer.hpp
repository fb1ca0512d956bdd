// One rank's rectangles into data.h5, with digests on the way: a piece is hashed and written while
// it lies in the cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "index.hpp"
#include "page_edges.hpp"
#include "trireme/base/files.hpp"

namespace trireme::checkpoint {

// A rectangle as written: enough to read any piece of it back.
struct WrittenSlab {
  const IndexEntry* entry = nullptr;
  base::Block block;
  std::vector<Digest> digests;
};

class SlabWriter {
 public:
  // Writes whole pages of `page_bytes` only.
  SlabWriter(const std::filesystem::path& path, int64_t page_bytes,
             const std::function<void(const char*)>& beat);
  // `data`: the rectangle, dense.
  WrittenSlab write(const IndexEntry& entry, const base::Block& block, const void* data);
  // Bytes kept back since they fill no page, in the order of writing.
  const std::vector<PageEdge>& edges() const { return edges_; }
  // The edges of the pages that this rank owns.
  void write_edges(const std::vector<PageEdge>& edges);
  // All bytes on the device; reports errors that only show now.
  void sync_and_close();
  int64_t bytes() const { return bytes_; }  // of the rectangles

 private:
  void write_range(int64_t offset, const std::byte* data, int64_t bytes);
  // Completes the last edge where the range goes on; returns the bytes that it took.
  int64_t extend_edge(int64_t offset, const std::byte* data, int64_t bytes);
  void keep_edge(int64_t offset, const std::byte* data, int64_t bytes);
  void write_pages(int64_t offset, const std::byte* data, int64_t bytes);
  void start_writeback(int64_t offset, int64_t bytes);

  std::filesystem::path path_;
  int64_t page_;
  base::FileDescriptor fd_;
  const std::function<void(const char*)>& beat_;
  std::vector<PageEdge> edges_;
  int64_t bytes_ = 0;
  int64_t pending_begin_ = 0;  // written, not yet given to the device
  int64_t pending_end_ = 0;
};

// Reads a piece's bytes, dense, into `into`.
void read_piece(int fd, const std::filesystem::path& path, const IndexEntry& entry,
                const base::Block& piece, std::byte* into);

// Where row `row`, column `column` of a dataset lies in the file.
int64_t file_offset(const IndexEntry& entry, int64_t row, int64_t column);

}  // namespace trireme::checkpoint
