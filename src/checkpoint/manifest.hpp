// manifest.json: written last, believed first.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "digest.hpp"
#include "trireme/checkpoint/reader.hpp"

namespace trireme::checkpoint {

inline constexpr const char* data_name = "data.h5";
inline constexpr const char* index_name = "index.bin";
inline constexpr const char* manifest_name = "manifest.json";
inline constexpr const char* state_path = "/state";  // dataset with the state of the run
inline constexpr int64_t format_version = 1;

struct FullManifest : Manifest {
  std::string metadata_digest;  // of what belongs to no dataset in data.h5, XXH3-128 in hexadecimal
  std::string index_digest;
};

std::string to_json(const FullManifest& manifest);
// Throws bad_data, naming `name`: not JSON, another format, a field missing or of another type, or
// a SHA-256 that does not fit.
FullManifest manifest_from_json(std::string_view text, const std::string& name);
FullManifest read_manifest(const std::filesystem::path& checkpoint);
// For a checkpoint in its place among others, where folders are ordered, replaced and removed by
// their names. Throws bad_data when the manifest says another step than the name: somebody renamed
// the folder.
void require_step(const Manifest& manifest, const std::filesystem::path& checkpoint, int64_t step);

// Digest of the HDF5 metadata: the bytes of data.h5 in `ranges`.
std::string metadata_digest(const std::filesystem::path& data_file,
                            const std::vector<struct ByteRange>& ranges);

std::string utc_now();  // 2026-11-21T14:03:33Z

// "step-" and digits, exactly as folder_name() writes them; -1 otherwise.
int64_t step_of(const std::string& folder_name);

}  // namespace trireme::checkpoint
