// Before a save is committed: are the bytes on the device those that were written? A sample, since
// all would take as long as the save.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "slab_writer.hpp"
#include "trireme/comm/comm.hpp"

namespace trireme::checkpoint {

// Reads a piece chosen by `seed` from the device (not the page cache) and compares its digest;
// throws io_error.
void read_back_one(const std::filesystem::path& path, const std::vector<WrittenSlab>& slabs,
                   uint64_t seed);

// Where two ranks' rectangles meet, in two datasets chosen by `seed`, the same on every rank:
// each rank's first and last piece.
struct Borders {
  struct Border {
    base::Block block;  // empty: this rank has none
    Digest first{};
    Digest last{};
  };
  struct OfDataset {
    const IndexEntry* entry = nullptr;
    std::vector<Border> ranks;
  };
  std::vector<OfDataset> datasets;
};
// Collective. After every rank has written.
Borders exchange_borders(const comm::CommView& comm, const std::vector<IndexEntry>& entries,
                         const std::vector<WrittenSlab>& slabs, uint64_t seed);

// Reads the last piece of this rank's rectangle and the first one of the rectangle that begins
// where it ends, from the device, and compares both; throws io_error. A page that two nodes wrote
// shows here.
void read_back_borders(const std::filesystem::path& path, const Borders& borders, int rank);

}  // namespace trireme::checkpoint
