// Files that are something else than what they are read as (compressed, Parquet, a Git LFS pointer,
// an HTML page of a failed download): told by their first bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace trireme::base {

// The kind of file that the reader expects.
enum class Expected : uint8_t { json_lines, json, weights, text };

// As many of the first bytes as tell all kinds.
inline constexpr size_t foreign_file_bytes = 1024;

// "is compressed with gzip: unpack it, `gzip -dc a.jsonl > NEW`, and name the new file"; "" where
// the bytes are of no other kind that is known. `first`: the beginning of `file`.
std::string foreign_file(std::string_view first, const std::filesystem::path& file,
                         Expected expected);
// The same as a UserError(bad_data) that names the file.
void refuse_foreign_file(std::string_view first, const std::filesystem::path& file,
                         Expected expected);

// A small text that stands for a file which a tool keeps elsewhere: Git LFS, Git Xet, git-annex,
// DVC.
bool is_pointer_file(std::string_view first);

// A word as a shell takes it.
std::string shell_word(const std::string& text);

}  // namespace trireme::base
