// data.h5 as an HDF5 file: laid out by one process before the data are written, checked by one
// process before they are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "index.hpp"

namespace trireme::checkpoint {

// Creates the file with one contiguous dataset per entry, space allocated, nothing filled, and sets
// entry.offset. Returns the file's size.
int64_t lay_out(const std::filesystem::path& path, std::vector<IndexEntry>& entries);

// Throws bad_data unless the file holds exactly these datasets in these places, contiguous, without
// filters and without links to other files. The caller has compared the digest of the metadata
// before.
void check_layout(const std::filesystem::path& path, const std::vector<IndexEntry>& entries);

}  // namespace trireme::checkpoint
