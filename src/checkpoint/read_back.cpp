#include "read_back.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::checkpoint {
namespace {

constexpr size_t datasets_compared = 2;

size_t choose(uint64_t seed, uint64_t number, size_t count) {
  const auto chosen = static_cast<size_t>(base::uniform(seed, base::Stream::test, number, 0) *
                                          static_cast<float>(count));
  return std::min(chosen, count - 1);
}

void compare_piece(const std::filesystem::path& path, const IndexEntry& entry,
                   const base::Block& piece, const Digest& written) {
  const base::FileDescriptor fd = base::open_read(path);
  const int64_t begin = file_offset(entry, piece.row, piece.column);
  const int64_t end = file_offset(entry, piece.row + piece.rows - 1, piece.column + piece.columns);
  ::posix_fadvise(fd.get(), begin, end - begin,
                  POSIX_FADV_DONTNEED);  // clean after the fsync: the read goes to the device
  std::vector<std::byte> bytes(static_cast<size_t>(piece.elements() * size_of(entry.type)));
  read_piece(fd.get(), path, entry, piece, bytes.data());
  VALIDATE(xxh3(bytes) == written, ExitCode::io_error, path.string(), ": ", entry.path,
           " reads back differently from row ", piece.row,
           " (the file system lost or changed what was written)");
}

// Whether `next` begins where `block` ends in the file.
bool follows(const base::Block& block, const base::Block& next) {
  const bool below = next.row == block.row + block.rows && next.column == block.column;
  const bool beside = next.row == block.row && next.column == block.column + block.columns;
  return !next.empty() && (below || beside);
}

}  // namespace

void read_back_one(const std::filesystem::path& path, const std::vector<WrittenSlab>& slabs,
                   uint64_t seed) {
  size_t pieces = 0;
  for (const WrittenSlab& slab : slabs) pieces += slab.digests.size();
  if (pieces == 0) return;
  size_t chosen = choose(seed, 0, pieces);
  for (const WrittenSlab& slab : slabs) {
    if (chosen >= slab.digests.size()) {
      chosen -= slab.digests.size();
      continue;
    }
    compare_piece(path, *slab.entry,
                  Pieces(slab.block, size_of(slab.entry->type)).block(static_cast<int64_t>(chosen)),
                  slab.digests[chosen]);
    return;
  }
}

Borders exchange_borders(const comm::CommView& comm, const std::vector<IndexEntry>& entries,
                         const std::vector<WrittenSlab>& slabs, uint64_t seed) {
  Borders borders;
  std::array<Borders::Border, datasets_compared> mine{};
  for (size_t i = 0; i < datasets_compared; ++i) {
    const IndexEntry& entry = entries[choose(seed, i, entries.size())];
    borders.datasets.push_back({&entry, {}});
    for (const WrittenSlab& slab : slabs) {
      if (slab.entry == &entry && !slab.digests.empty())
        mine[i] = {slab.block, slab.digests.front(), slab.digests.back()};
    }
  }
  for (const auto& of_rank : comm.gather_values(mine)) {
    for (size_t i = 0; i < datasets_compared; ++i) borders.datasets[i].ranks.push_back(of_rank[i]);
  }
  return borders;
}

void read_back_borders(const std::filesystem::path& path, const Borders& borders, int rank) {
  for (const Borders::OfDataset& dataset : borders.datasets) {
    const Borders::Border& mine = dataset.ranks[static_cast<size_t>(rank)];
    if (mine.block.empty()) continue;
    for (const Borders::Border& next : dataset.ranks) {
      if (!follows(mine.block, next.block)) continue;
      const Pieces of_mine(mine.block, size_of(dataset.entry->type));
      compare_piece(path, *dataset.entry, of_mine.block(of_mine.count() - 1), mine.last);
      compare_piece(path, *dataset.entry, Pieces(next.block, size_of(dataset.entry->type)).block(0),
                    next.first);
      break;
    }
  }
}

}  // namespace trireme::checkpoint
