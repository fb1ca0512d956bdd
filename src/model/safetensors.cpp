#include "trireme/model/safetensors.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "safetensors_header.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/foreign_file.hpp"
#include "trireme/base/progress.hpp"

namespace trireme::model {
namespace fs = std::filesystem;

namespace {

constexpr const char* single_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";

void check_block(const base::TensorSpec& spec, const base::Block& block) {
  const bool inside = block.row >= 0 && block.rows >= 0 && block.column >= 0 &&
                      block.columns >= 0 && block.row + block.rows <= spec.rows() &&
                      block.column + block.columns <= spec.columns();
  if (!inside)
    throw InternalError(
        base::text("a block outside of ", spec.name, " ", base::shape_text(spec.shape)));
}

// A shard may be a link (the Hugging Face cache is made of them), but only within the folder or to
// the `blobs` of the same cache entry: an index from a stranger must not make us open files
// elsewhere.
void check_shard_location(const fs::path& folder, const fs::path& shard) {
  std::error_code error;
  const fs::path target = fs::canonical(shard, error);
  if (error) return;  // missing: opening it says so
  const fs::path home = fs::canonical(folder, error);
  const auto below = [&target](const fs::path& parent) {
    return std::mismatch(parent.begin(), parent.end(), target.begin(), target.end()).first ==
           parent.end();
  };
  const bool cache_blob = home.parent_path().filename() == "snapshots" &&
                          below(home.parent_path().parent_path() / "blobs");
  VALIDATE(below(home) || cache_blob, ExitCode::bad_data, shard.string(), " is a link to ",
           target.string(), ", outside of the model's folder: copy the file into the folder");
}

std::string_view first_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()),
          std::min(bytes.size(), base::foreign_file_bytes)};
}

// Why a folder has no entry to its weights, where something lies in it that tells.
std::string trace_of_unfinished(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("model") &&
        (name.ends_with(".safetensors.tmp") || name.ends_with(".safetensors"))) {
      return base::text("; ", name,
                        " is of an export or a download that did not end: make it again");
    }
  }
  return {};
}

}  // namespace

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(path), opened_(stamp()) {
  const auto bytes = file_.bytes();
  VALIDATE(opened_.size == bytes.size(), ExitCode::bad_data, path.string(),
           " changed while it was opened: try again");
  if (const auto first = first_of(bytes); first.size() < 9 || first[8] != '{')
    base::refuse_foreign_file(first, path, base::Expected::weights);
  VALIDATE(bytes.size() >= 8, ExitCode::bad_data, path.string(), ": ", bytes.size(),
           " bytes are too few for a safetensors file (truncated?): copy or download it again");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  VALIDATE(length <= safetensors_header_limit, ExitCode::bad_data, path.string(), ": a header of ",
           length, " bytes (the limit is ", safetensors_header_limit,
           "): this is no safetensors file");
  VALIDATE(length <= bytes.size() - 8, ExitCode::bad_data, path.string(), ": a header of ", length,
           " bytes in a file of ", bytes.size(), " bytes: the file is truncated");
  data_offset_ = 8 + length;
  const std::string_view json(reinterpret_cast<const char*>(bytes.data()) + 8, length);
  auto header = parse_safetensors_header(json, bytes.size() - data_offset_, path.string());
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
}

SafetensorsFile::Stamp SafetensorsFile::stamp() const {
  struct stat info {};
  if (::stat(file_.path().c_str(), &info) != 0) base::throw_errno(errno, "inspect", file_.path());
  return {info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size), info.st_mtim.tv_sec,
          info.st_mtim.tv_nsec};
}

void SafetensorsFile::check_unchanged() const {
  VALIDATE(stamp() == opened_, ExitCode::bad_data, path().string(),
           " changed while it was being read: start again when nobody writes to it");
}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsEntry& entry) const {
  return file_.bytes().subspan(data_offset_ + entry.begin, entry.end - entry.begin);
}

SafetensorsSource::SafetensorsSource(const fs::path& path) : path_(path) {
  std::error_code error;
  fs::path file = path;
  if (fs::is_directory(path, error)) {
    file = path / single_name;  // where both are there transformers reads this one, too
    if (!fs::exists(file, error)) file = path / index_name;
    VALIDATE(fs::exists(file, error), ExitCode::input_missing, "no weights in ", path.string(),
             " (neither ", single_name, " nor ", index_name,
             "): give the folder of a Hugging Face model in safetensors format",
             trace_of_unfinished(path));
  }
  if (file.extension() == ".json") {
    open_index(file);
    return;
  }
  files_.push_back(std::make_unique<SafetensorsFile>(file));
  for (const auto& [name, entry] : files_.back()->entries())
    places_.emplace(name, Place{files_.back().get(), &entry});
}

SafetensorsSource::~SafetensorsSource() = default;

void SafetensorsSource::open_index(const fs::path& index) {
  const std::string text = base::read_file(index, safetensors_header_limit);
  base::refuse_foreign_file(text, index, base::Expected::json);
  const auto names = parse_safetensors_index(text, index.string());
  std::set<std::string> files;
  for (const auto& [name, file] : names) files.insert(file);
  for (const auto& file : files) {
    const fs::path shard = index.parent_path() / file;
    check_shard_location(index.parent_path().empty() ? fs::path(".") : index.parent_path(), shard);
    files_.push_back(std::make_unique<SafetensorsFile>(shard));
    for (const auto& [name, entry] : files_.back()->entries()) {
      const auto listed = names.find(name);
      VALIDATE(listed != names.end() && listed->second == file, ExitCode::bad_data, shard.string(),
               " has the tensor '", name, "', which ", index.string(), " ",
               listed == names.end() ? "does not list" : "puts into " + listed->second,
               ": index and files do not belong together");
      places_.emplace(name, Place{files_.back().get(), &entry});
    }
  }
  for (const auto& [name, file] : names) {
    VALIDATE(places_.contains(name), ExitCode::bad_data, index.string(), " puts '", name, "' into ",
             file, ", which does not have it: index and files do not belong together");
  }
}

SafetensorsSource::Place SafetensorsSource::place(std::string_view name) const {
  const auto found = places_.find(name);
  VALIDATE(found != places_.end(), ExitCode::bad_data, path_.string(), " has no tensor '", name,
           "'");
  return found->second;
}

std::vector<std::string> SafetensorsSource::names() const {
  std::vector<std::string> out;
  for (const auto& [name, place] : places_) out.push_back(name);
  return out;
}

bool SafetensorsSource::contains(std::string_view name) const {
  return places_.find(name) != places_.end();
}
const base::TensorSpec& SafetensorsSource::spec(std::string_view name) const {
  return place(name).entry->spec;
}
StoredType SafetensorsSource::type(std::string_view name) const { return place(name).entry->type; }
std::string_view SafetensorsSource::type_name(std::string_view name) const {
  return name_of(type(name));
}

bool SafetensorsSource::same_values(std::string_view a, std::string_view b) const {
  constexpr int64_t piece = int64_t{1} << 20;  // elements compared at a time
  const base::TensorSpec& shape = spec(a);
  if (shape.shape != spec(b).shape) return false;
  if (type(a) == type(b)) {  // the stored bytes
    const Place first = place(a), second = place(b);
    first.file->check_unchanged();
    second.file->check_unchanged();
    auto left = first.file->bytes(*first.entry), right = second.file->bytes(*second.entry);
    while (!left.empty()) {
      const size_t size = std::min(left.size(), static_cast<size_t>(piece));
      if (std::memcmp(left.data(), right.data(), size) != 0) return false;
      left = left.subspan(size);
      right = right.subspan(size);
      base::tick();
    }
    return true;
  }
  const int64_t rows = std::max<int64_t>(1, piece / std::max<int64_t>(1, shape.columns()));
  std::vector<float> left, right;
  for (int64_t row = 0; row < shape.rows(); row += rows) {
    const base::Block block{row, std::min(rows, shape.rows() - row), 0, shape.columns()};
    left.resize(static_cast<size_t>(block.elements()));
    right.resize(left.size());
    read(a, block, left.data());
    read(b, block, right.data());
    if (left != right) return false;
    base::tick();
  }
  return true;
}

void SafetensorsSource::rename(std::string_view from, const std::string& to) {
  const Place moved = place(from);
  places_.erase(places_.find(from));
  places_.emplace(to, moved);
}

template <class Take>
void SafetensorsSource::for_rows(std::string_view name, const base::Block& block,
                                 const Take& take) const {
  const auto [file, entry] = place(name);
  VALIDATE(is_weight_type(entry->type), ExitCode::bad_data, file->path().string(), ": '", name,
           "' has the type ", name_of(entry->type),
           "; weights must be F32, BF16, F16, F64 or F8: convert the model first");
  check_block(entry->spec, block);
  file->check_unchanged();
  const auto bytes = file->bytes(*entry);
  const auto size = bytes_of(entry->type);
  const int64_t columns = entry->spec.columns();
  constexpr uint64_t held = uint64_t{16} << 20;  // bytes of the file in this process at a time
  uint64_t begin = static_cast<uint64_t>(block.row * columns) * size;
  for (int64_t row = 0; row < block.rows; ++row) {
    take(bytes.data() + static_cast<uint64_t>((block.row + row) * columns + block.column) * size,
         row);
    const uint64_t end = static_cast<uint64_t>((block.row + row + 1) * columns) * size;
    if (end - begin < held && row + 1 < block.rows) continue;
    file->let_go(bytes.subspan(begin, end - begin));
    begin = end;
  }
  count_bytes(static_cast<uint64_t>(block.elements()) * size);
}

void SafetensorsSource::read(std::string_view name, const base::Block& block, float* out) const {
  const StoredType stored = type(name);
  for_rows(name, block, [&](const std::byte* from, int64_t row) {
    to_float(stored, from, static_cast<size_t>(block.columns), out + row * block.columns);
  });
}

bool SafetensorsSource::copy(std::string_view name, const base::Block& block, StoredType wanted,
                             std::byte* out) const {
  if (type(name) != wanted) return false;
  const auto bytes = static_cast<size_t>(block.columns) * bytes_of(wanted);
  for_rows(name, block, [&](const std::byte* from, int64_t row) {
    std::memcpy(out + static_cast<size_t>(row) * bytes, from, bytes);
  });
  return true;
}

}  // namespace trireme::model
