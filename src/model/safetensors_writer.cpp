#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "safetensors_header.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/model/safetensors.hpp"

namespace trireme::model {
namespace fs = std::filesystem;

namespace {

constexpr size_t chunk_elements = size_t{1} << 18;  // converted at a time

std::string shard_name(const std::string& stem, size_t index, size_t count) {
  if (count == 1) return stem + ".safetensors";
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "-%05zu-of-%05zu.safetensors", index + 1, count);
  return stem + numbers;
}

std::string index_file(const std::string& stem) { return stem + ".safetensors.index.json"; }

uint64_t stored_bytes(const base::TensorSpec& tensor, StoredType type) {
  return base::checked_mul(static_cast<uint64_t>(tensor.elements()), bytes_of(type));
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(fs::path folder, std::vector<base::TensorSpec> tensors,
                                     StoredType type, uint64_t file_bytes, std::string stem)
    : folder_(std::move(folder)),
      tensors_(std::move(tensors)),
      type_(type),
      stem_(std::move(stem)) {
  if (type != StoredType::f32 && type != StoredType::bf16 && type != StoredType::f16) {
    throw InternalError(
        base::text("safetensors are written as F32, BF16 or F16, not ", name_of(type)));
  }
  plan(file_bytes);
}

SafetensorsWriter::~SafetensorsWriter() = default;

bool SafetensorsWriter::is_weight_file(const std::string& name, const std::string& stem) {
  return name == stem + ".safetensors" || name == index_file(stem) ||
         (name.starts_with(stem + "-") && name.ends_with(".safetensors") &&
          name.find("-of-") != std::string::npos);
}

void SafetensorsWriter::plan(uint64_t file_bytes) {
  std::vector<std::vector<size_t>> groups(1);
  uint64_t filled = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const uint64_t bytes = stored_bytes(tensors_[i], type_);
    if (filled > 0 && base::checked_add(filled, bytes) > file_bytes) {
      groups.emplace_back();
      filled = 0;
    }
    groups.back().push_back(i);
    filled = base::checked_add(filled, bytes);
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<const base::TensorSpec*> members;
    for (const size_t i : groups[g]) members.push_back(&tensors_[i]);
    // The reference writer's order within a file: by name, as all elements have one size.
    std::sort(members.begin(), members.end(),
              [](const auto* a, const auto* b) { return a->name < b->name; });
    File file;
    file.name = shard_name(stem_, g, groups.size());
    file.header = safetensors_header_text(members, type_);
    file.size = file.header.size();
    for (const auto* member : members) {
      const auto index = static_cast<size_t>(member - tensors_.data());
      if (!places_.emplace(member->name, Place{g, index, file.size}).second)
        throw InternalError("two tensors named " + member->name);
      file.size = base::checked_add(file.size, stored_bytes(*member, type_));
    }
    files_.push_back(std::move(file));
  }
}

fs::path SafetensorsWriter::temporary(const File& file) const {
  return folder_ / (file.name + ".tmp");
}

void SafetensorsWriter::create() {
  const base::FileWork work{"making", folder_};
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) base::throw_errno(error.value(), "create the folder", folder_);
  uint64_t total = 0;
  for (const auto& file : files_) total = base::checked_add(total, file.size);
  const uint64_t free = base::free_space(folder_);
  VALIDATE(free >= total, ExitCode::io_error, "the export needs ",
           base::human_bytes(static_cast<double>(total)), " in ", folder_.string(), ", which has ",
           base::human_bytes(static_cast<double>(free)),
           ": free some space or choose another folder");
  for (auto& file : files_) {
    const fs::path path = temporary(file);
    const int fd =
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) base::throw_errno(errno, "create", path);
    file.fd = base::FileDescriptor(fd);
    base::write_at(fd, 0, std::as_bytes(std::span(file.header)), path);
    if (::ftruncate(fd, static_cast<off_t>(file.size)) != 0)
      base::throw_errno(errno, "extend", path);
  }
}

int SafetensorsWriter::descriptor(File& file) {
  if (!file.fd.valid()) {
    const fs::path path = temporary(file);
    const base::FileWork work{"open", path};
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) base::throw_errno(errno, "open", path);
    file.fd = base::FileDescriptor(fd);
  }
  return file.fd.get();
}

void SafetensorsWriter::write(std::string_view name, const base::Block& block,
                              const float* values) {
  const auto found = places_.find(name);
  if (found == places_.end())
    throw InternalError(base::text("no tensor ", name, " in this export"));
  if (block.empty()) return;
  const Place& place = found->second;
  const auto& spec = tensors_[place.tensor];
  if (block.row < 0 || block.column < 0 || block.row + block.rows > spec.rows() ||
      block.column + block.columns > spec.columns()) {
    throw InternalError(base::text("a block outside of ", name));
  }
  File& file = files_[place.file];
  const int fd = descriptor(file);
  const bool whole_rows = block.columns == spec.columns();  // then the block is one run
  const auto runs = static_cast<size_t>(whole_rows ? 1 : block.rows);
  const auto run = static_cast<size_t>(whole_rows ? block.elements() : block.columns);
  const uint64_t width = bytes_of(type_);
  std::vector<std::byte> buffer(std::min(run, chunk_elements) * width);
  for (size_t r = 0; r < runs; ++r) {
    const auto start = static_cast<uint64_t>(
        (block.row + static_cast<int64_t>(r)) * spec.columns() + block.column);
    for (size_t done = 0; done < run; done += chunk_elements) {
      const size_t count = std::min(chunk_elements, run - done);
      from_float(type_, values + r * run + done, count, buffer.data());
      base::write_at(fd, place.offset + (start + done) * width,
                     std::span(buffer.data(), count * width), temporary(file));
    }
  }
}

void SafetensorsWriter::sync() {
  const base::FileWork work{"sync", folder_};
  for (auto& file : files_) {
    if (file.fd.valid() && ::fsync(file.fd.get()) != 0)
      base::throw_errno(errno, "sync", temporary(file));
  }
}

void SafetensorsWriter::retire_older() {
  bool found = false;
  for (const std::string& entry : {index_file(stem_), stem_ + ".safetensors"}) {
    std::error_code error;
    found |= fs::remove(folder_ / entry, error);
    if (error) base::throw_errno(error.value(), "remove", folder_ / entry);
  }
  if (found) base::sync_folder(folder_);
}

void SafetensorsWriter::commit() {
  const base::FileWork work{"commit", folder_};
  const auto names = file_names();
  retire_older();
  for (const auto& file : files_) {
    if (::rename(temporary(file).c_str(), (folder_ / file.name).c_str()) != 0)
      base::throw_errno(errno, "rename", temporary(file));
  }
  if (files_.size() > 1) {
    nlohmann::json index;
    uint64_t total = 0;
    for (const auto& [name, place] : places_) {
      index["weight_map"][name] = files_[place.file].name;
      total += stored_bytes(tensors_[place.tensor], type_);
    }
    index["metadata"]["total_size"] = total;
    base::sync_folder(folder_);  // the index last
    base::write_file_atomically(folder_ / index_file(stem_), index.dump(2) + "\n");
  }
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename();
    const bool ours = std::find(names.begin(), names.end(), name) != names.end() ||
                      (files_.size() > 1 && name.ends_with(".json"));
    std::error_code ignored;
    if (is_weight_file(name, stem_) && !ours) fs::remove(entry.path(), ignored);
  }
  base::sync_folder(folder_);
}

void SafetensorsWriter::discard() noexcept {
  std::error_code ignored;
  for (auto& file : files_) {
    file.fd = base::FileDescriptor();
    fs::remove(temporary(file), ignored);
  }
}

std::vector<std::string> SafetensorsWriter::file_names() const {
  std::vector<std::string> out;
  for (const auto& file : files_) out.push_back(file.name);
  return out;
}

}  // namespace trireme::model
