// The safetensors format: 8 bytes of little-endian header length, a JSON header, the tensors'
// bytes. Everything a file claims is checked before it is used, as the reference implementation
// does (safetensors/src/tensor.rs) and more: duplicate keys, more than 8 dimensions, shards outside
// the model's folder. All errors are UserErrors that name the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/files.hpp"
#include "trireme/model/stored_type.hpp"
#include "trireme/model/weight_source.hpp"

namespace trireme::model {

struct SafetensorsEntry {
  base::TensorSpec spec;
  StoredType type = StoredType::f32;
  uint64_t begin = 0;  // bytes from the start of the data
  uint64_t end = 0;
};

// One file, memory-mapped. Move-only.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, SafetensorsEntry, std::less<>>& entries() const { return entries_; }
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }
  // The stored bytes of a tensor, at any alignment; valid while this object lives.
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const;
  // base::MappedFile::let_go().
  void let_go(std::span<const std::byte> part) const { file_.let_go(part); }
  // Throws bad_data when the file on disk is no longer the one that was mapped (inode, size, time
  // of change): a truncated map would end the process with SIGBUS.
  void check_unchanged() const;

 private:
  struct Stamp {
    uint64_t device = 0, inode = 0, size = 0;
    int64_t seconds = 0, nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };
  Stamp stamp() const;

  base::MappedFile file_;
  Stamp opened_;
  uint64_t data_offset_ = 0;
  std::map<std::string, SafetensorsEntry, std::less<>> entries_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

// The tensors of one file, or of all files that a model.safetensors.index.json lists.
class SafetensorsSource : public WeightSource {
 public:
  // `path`: a folder (model.safetensors, else model.safetensors.index.json), an index or one file.
  // input_missing names what was expected.
  explicit SafetensorsSource(const std::filesystem::path& path);
  ~SafetensorsSource() override;

  std::vector<std::string> names() const override;
  bool contains(std::string_view name) const override;
  const base::TensorSpec& spec(std::string_view name) const override;
  std::string_view type_name(std::string_view name) const override;
  void read(std::string_view name, const base::Block& block, float* out) const override;
  bool copy(std::string_view name, const base::Block& block, StoredType type,
            std::byte* out) const override;
  std::string describe() const override { return path_.string(); }

  StoredType type(std::string_view name) const;

  // Whether two tensors of one shape have the same values. Reads them until they differ.
  bool same_values(std::string_view a, std::string_view b) const;
  // The tensor gets another name, which no tensor has.
  void rename(std::string_view from, const std::string& to);

 private:
  struct Place {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
  };
  Place place(std::string_view name) const;
  // take(bytes of a row of the block, row of the block)
  template <class Take>
  void for_rows(std::string_view name, const base::Block& block, const Take& take) const;
  void open_index(const std::filesystem::path& index);

  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place, std::less<>> places_;
};

// Writes a model as safetensors from many ranks at once: nobody gathers it. All ranks construct the
// writer with the same arguments (the offsets follow from them), then: one rank calls create();
// barrier; every rank write()s its blocks and calls sync(); barrier; one rank calls commit().
// Nothing here is collective: the caller places the barriers. Until commit the files have the
// ending .tmp; a crash leaves an earlier export as it was, or a folder that SafetensorsSource
// refuses. Throws io_error, permission.
class SafetensorsWriter {
 public:
  static constexpr uint64_t default_file_bytes = 5'000'000'000;  // Hugging Face's default

  // Elements of type f32, bf16 or f16. One file `model.safetensors`, or when the tensors take more
  // than `file_bytes`: model-00001-of-0000n.safetensors in the order of `tensors` and an index.
  // `stem`: in the place of "model".
  SafetensorsWriter(std::filesystem::path folder, std::vector<base::TensorSpec> tensors,
                    StoredType type, uint64_t file_bytes = default_file_bytes,
                    std::string stem = "model");
  ~SafetensorsWriter();

  // Creates the folder and the files in full size, with their headers.
  void create();
  // A block of a tensor from fp32 (rounded to nearest even), row-major. Blocks must not overlap
  // between ranks; together they must cover every tensor.
  void write(std::string_view name, const base::Block& block, const float* values);
  // Makes this rank's writes durable.
  void sync();
  // Removes what leads a reader to the weights of an earlier export; the folder is refused until
  // commit() is done. Comes before anything of the new export is put among the old: files of two
  // exports have the same names and shapes.
  void retire_older();
  // Retires an earlier export, renames the files to their final names, writes the index and removes
  // weights that these replace.
  void commit();
  // After an error, on one rank: removes the temporary files. Never throws.
  void discard() noexcept;

  std::vector<std::string> file_names() const;
  // Whether a writer makes files of this name: model.safetensors, its index, its shards.
  static bool is_weight_file(const std::string& name, const std::string& stem = "model");

 private:
  struct File {
    std::string name;
    std::string header;  // length and JSON
    uint64_t size = 0;
    base::FileDescriptor fd;
  };
  struct Place {
    size_t file = 0;
    size_t tensor = 0;
    uint64_t offset = 0;  // in the file
  };
  void plan(uint64_t file_bytes);
  std::filesystem::path temporary(const File& file) const;
  int descriptor(File& file);

  std::filesystem::path folder_;
  std::vector<base::TensorSpec> tensors_;
  StoredType type_;
  std::string stem_;
  std::vector<File> files_;
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace trireme::model
