// The file operations of a commit. Each is a place of base/fault_point.hpp: "ckpt.mkdir",
// "ckpt.open", "ckpt.write", "ckpt.fsync", "ckpt.close", "ckpt.rename".
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "trireme/base/files.hpp"

namespace trireme::checkpoint {

void make_folder(const std::filesystem::path& path);  // must not exist
// Write-only: a network file system reads a page before a part of it is written when the descriptor
// may also read (page_edges.hpp).
base::FileDescriptor open_for_writing(const std::filesystem::path& path);
// Refuses to follow a link and an existing file.
base::FileDescriptor create_file(const std::filesystem::path& path);
void write_at(int fd, uint64_t offset, std::span<const std::byte> from,
              const std::filesystem::path& path);
void sync_descriptor(int fd, const std::filesystem::path& path);
// Closes and reports a late write error (NFS, quotas).
void close_file(base::FileDescriptor fd, const std::filesystem::path& path);
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// `from` takes the place of the existing `to`; the old content is then at `from`. Atomic where the
// file system can.
void exchange_paths(const std::filesystem::path& from, const std::filesystem::path& to);
// The same by three renames, where the file system cannot; remove_leftovers() knows what an end in
// between leaves.
void exchange_by_renames(const std::filesystem::path& from, const std::filesystem::path& to);
// Reserves `bytes` on the file system, so that a full disk shows before the first byte; does
// nothing where it cannot.
void reserve(int fd, int64_t bytes, const std::filesystem::path& path);

}  // namespace trireme::checkpoint
