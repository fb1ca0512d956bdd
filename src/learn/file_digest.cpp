#include "trireme/learn/file_digest.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "learn/fingerprint.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/trace/guards.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::learn {
namespace {

namespace fs = std::filesystem;

// Of weight files: both ends whole, which is where formats have their headers, and pieces spread
// evenly over what lies between.
constexpr uint64_t end_bytes = 65536;
constexpr uint64_t piece_bytes = 4096;
constexpr uint64_t pieces = 512;
constexpr uint64_t largest_header = uint64_t{100} << 20;  // as the format has it

// A safetensors header, where the file is one: its length stands in front. It names every tensor
// with its type, shape and place.
uint64_t header_bytes(const std::string& beginning, uint64_t size) {
  uint64_t length = 0;
  if (beginning.size() < sizeof length) return 0;
  std::memcpy(&length, beginning.data(), sizeof length);
  return length < size - sizeof length ? std::min(length + sizeof length, largest_header) : 0;
}

void add_file(Fingerprint& all, const fs::path& file) {
  const base::FileWork work{"read", file};
  const uint64_t size = fs::file_size(file);
  all.add(file.filename().string());
  all.add(std::to_string(size));
  std::ifstream in(file, std::ios::binary);
  const auto read = [&](uint64_t offset, uint64_t bytes) {
    std::string part(std::min(bytes, size - offset), '\0');
    in.seekg(static_cast<std::streamoff>(offset));
    in.read(part.data(), static_cast<std::streamsize>(part.size()));
    VALIDATE(in.good(), ExitCode::io_error, "cannot read ", file.string());
    all.add(part);
    return part;
  };
  const std::string beginning = read(0, end_bytes);
  if (const uint64_t header = header_bytes(beginning, size); header > end_bytes)
    read(end_bytes, header - end_bytes);
  if (size <= pieces * piece_bytes) {
    if (size > end_bytes) read(end_bytes, size);
    return;
  }
  for (uint64_t i = 1; i < pieces; ++i) read(size / pieces * i, piece_bytes);
  read(size - end_bytes, end_bytes);
}

// Files of the folder with one of these endings, in order; a file itself.
std::vector<fs::path> files_of(const fs::path& folder,
                               std::initializer_list<std::string_view> kinds) {
  if (fs::is_regular_file(folder)) return {folder};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string kind = entry.path().extension().string();
    if (entry.is_regular_file() && std::ranges::find(kinds, kind) != kinds.end())
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string digest_of_model(const fs::path& folder) {
  const trace::Region region{"digest of a model", trace::no_argument, trace::Category::io};
  const trace::Guarding guard{trace::Guard::inputs};
  if (!fs::exists(folder)) return "";
  Fingerprint all;
  for (const auto& file : files_of(folder, {".safetensors", ".gguf"})) add_file(all, file);
  return "pieces:" + digest_text(all.value());
}

std::string digest_of_file(const fs::path& file) {
  constexpr size_t at_a_time = size_t{1} << 20;
  if (!fs::is_regular_file(file)) return "";
  const base::FileWork work{"read", file};
  std::ifstream in(file, std::ios::binary);
  VALIDATE(in.is_open(), ExitCode::io_error, "cannot read ", file.string());
  uint64_t digest = base::fnv_basis;
  for (std::string part(at_a_time, '\0'); in;) {
    in.read(part.data(), static_cast<std::streamsize>(part.size()));
    digest =
        base::fnv1a(std::string_view(part).substr(0, static_cast<size_t>(in.gcount())), digest);
    base::tick();
  }
  VALIDATE(in.eof() && !in.bad(), ExitCode::io_error, "cannot read ", file.string());
  return digest_text(digest);
}

std::string digest_of_descriptions(const fs::path& path) {
  if (!fs::is_directory(path)) return digest_of_file(path);
  Fingerprint all;
  for (const auto& file : files_of(path, {".json", ".jinja"})) {
    all.add(file.filename().string());
    all.add(digest_of_file(file));
  }
  return digest_text(all.value());
}

}  // namespace trireme::learn
