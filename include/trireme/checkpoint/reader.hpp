// Loading: any rank count reads any checkpoint. A rank reads the rectangles it wants and the rest
// of the digest pieces they touch; every byte handed out has been compared with its digest, and the
// HDF5 library sees a file only after its metadata did.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/shard_layout.hpp"
#include "trireme/checkpoint/position.hpp"
#include "trireme/comm/comm.hpp"

namespace trireme::checkpoint {

// A whole checkpoint that this run cannot use: of another model, with other options, by another
// version. Exit code 65; no older checkpoint is tried in its place, since going back is not what
// was asked for.
class Mismatch : public UserError {
 public:
  explicit Mismatch(const std::string& message) : UserError(ExitCode::bad_data, message) {}
};

// What manifest.json says.
struct Manifest {
  int64_t format = 0;
  int64_t step = 0;
  int64_t fence = 0;
  int64_t world_size = 0;
  std::string version;
  std::string config_digest;
  std::string saved;  // UTC, ISO 8601
  int64_t data_bytes = 0;
  int64_t index_bytes = 0;
};

struct DatasetInfo {
  std::string path;
  std::vector<int64_t> shape;
  comm::DType type = comm::DType::f32;
  int64_t bytes = 0;
};

// A rectangle of a dataset, to be stored densely at `into`. Shape and type must be those of the
// checkpoint.
struct ReadRequest {
  std::string path;
  std::vector<int64_t> shape;
  comm::DType type = comm::DType::f32;
  base::Block block;
  void* into = nullptr;
};

struct ReadCounters {
  int64_t wanted = 0;  // bytes of the requests
  int64_t read =
      0;  // bytes read from data.h5 by this rank, pieces at the edges of the rectangles included
  int64_t pieces = 0;  // digests compared
  double seconds = 0;
};

class Reader {
 public:
  // Collective. Checks manifest, sizes, index and HDF5 metadata; throws bad_data or input_missing
  // on every rank alike, naming the file and what differs.
  Reader(const comm::CommView& comm, std::filesystem::path folder);
  Reader(const Reader&) = delete;
  ~Reader();

  const Manifest& manifest() const;
  const std::string& state() const;  // JSON text, verified; the same on every rank
  const std::vector<DatasetInfo>& datasets() const;
  const DatasetInfo* find(const std::string& path) const;  // nullptr: not there

  // Local. Throws Mismatch unless the datasets in `folder` ("/actor/weight/") are these: naming the
  // first that is not, and `key`, which says what a run saves.
  void require_names(const std::string& folder, const std::vector<std::string>& names,
                     const std::string& key) const;

  // Collective; requests differ between ranks and may be empty. Throws on every rank alike:
  // Mismatch for the first request that the checkpoint has not, or not in this shape or type (both
  // are named); bad_data for bytes that do not fit their digest (file and tensor are named).
  void read(std::span<const ReadRequest> requests);
  // Collective. Compares all pieces, each rank a share.
  void verify();

  const ReadCounters& counters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Committed steps in `folder`, greatest first, by name only. Empty when the folder does not exist;
// throws io_error or permission when it cannot be read now. Not collective.
std::vector<int64_t> list_steps(const std::filesystem::path& folder);

// Collective. Opens the newest checkpoint (position.hpp) and gives it to `load`; when it is damaged
// (bad_data, also from `load`) says so loudly and tries the one before. Returns its step; nullopt
// when there is none at all; throws bad_data when none is whole. What cannot be read now (io_error)
// and what does not belong to this run (Mismatch) is thrown on: an older checkpoint would be a
// silent loss.
std::optional<int64_t> load_newest(const comm::CommView& comm, const std::filesystem::path& folder,
                                   const std::function<void(Reader&)>& load);

// Text for `trireme inspect`: manifest, state, datasets with shape, type and size. `path` is a
// checkpoint or a folder of them. One process. Checks all digests when `verify`.
std::string inspect(const std::filesystem::path& path, bool verify);

}  // namespace trireme::checkpoint
