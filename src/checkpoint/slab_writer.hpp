// One rank's rectangles into data.h5, with digests on the way: a piece is hashed and written while it lies in the cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "index.hpp"
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
  SlabWriter(const std::filesystem::path& path, const std::function<void(const char*)>& beat);
  // `data`: the rectangle, dense.
  WrittenSlab write(const IndexEntry& entry, const base::Block& block, const void* data);
  // All bytes on the device; reports errors that only show now.
  void sync_and_close();
  int64_t bytes() const { return bytes_; }

 private:
  void write_range(int64_t offset, const std::byte* data, int64_t bytes);
  void start_writeback(int64_t offset, int64_t bytes);

  std::filesystem::path path_;
  base::FileDescriptor fd_;
  const std::function<void(const char*)>& beat_;
  int64_t bytes_ = 0;
  int64_t pending_begin_ = 0;  // written, not yet given to the device
  int64_t pending_end_ = 0;
};

// Reads a piece's bytes, dense, into `into`.
void read_piece(int fd, const std::filesystem::path& path, const IndexEntry& entry, const base::Block& piece, std::byte* into);

// Reads a piece chosen by `seed` from the device (not the page cache) and compares its digest; throws io_error.
void read_back_one(const std::filesystem::path& path, const std::vector<WrittenSlab>& slabs, uint64_t seed);

}  // namespace trireme::checkpoint
