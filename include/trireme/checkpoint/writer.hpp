// Saving: named sharded tensors and the state of a run into <folder>/step-NNNNNN/, all or nothing.
//
//   data.h5        plain HDF5: one contiguous dataset per tensor, in its global shape, under its
//   path (`/actor/weight/<HF name>`);
//                  `/state` is JSON text
//   index.bin      which rank wrote which rectangle, and XXH3-128 digests of pieces of at most a
//   few MiB (index.hpp) manifest.json  sizes and digests of both files, step, fence, world size,
//   SHA-256 over all of it
//
// How: rank 0 lays the file out with HDF5 and closes it; then every rank writes its rectangles at
// the datasets' file offsets. No data passes through MPI-IO, which reports full disks unreliably.
// The order of the commit and its crash points stand in writer.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/shard_layout.hpp"
#include "trireme/checkpoint/position.hpp"
#include "trireme/checkpoint/run_lock.hpp"
#include "trireme/comm/comm.hpp"

namespace trireme::checkpoint {

// Call once, before MPI is initialised. HDF5, opened here, then takes no part in MPI_Finalize and
// in exit(): a file that it could not close (a disk that is full) would crash the process there,
// after a run that ended well.
void open_library_before_mpi();

// One dataset and this rank's part of it. `block` is a rectangle of the matrix view
// (base/shard_layout.hpp), stored densely at `data`; an empty block is no part. The blocks of all
// ranks must tile the dataset exactly.
struct Dataset {
  std::string path;            // "/actor/weight/model.norm.weight"
  std::vector<int64_t> shape;  // global; empty: a scalar
  comm::DType type = comm::DType::f32;
  base::Block block;
  const void* data = nullptr;  // must stay unchanged until save returns (see background.hpp for
                               // saves in the background)
};

// Content of a checkpoint; all ranks list the same datasets in the same order.
struct Content {
  std::vector<Dataset> datasets;
  std::string state =
      "{}";  // JSON text, taken from rank 0: progress, counters, sampler, keys, deck, ...
};

struct SaveOptions {
  int64_t keep = 3;     // committed checkpoints that stay, >= 2
  int64_t pinned = -1;  // a step that stays in addition; -1: none
  // Which checkpoint of the folder the run began with. Only those that are not newer, and the run's
  // own, are counted and removed; none: only its own.
  std::optional<Position> resumed_from{};
  std::string config_digest{};    // of the deck, for the manifest
  std::string version{};          // of the program
  const RunLock* lock = nullptr;  // checked again before the commit; its fence is the checkpoint's
  const RunLock* folder_lock = nullptr;  // of the folder of checkpoints, likewise
  // Called on rank 0 with the step of each checkpoint that goes, before it does, by the thread that
  // writes; must not throw.
  std::function<void(int64_t)> before_removal{};
  bool verify = true;  // read some pieces per rank back from the device and compare
  // Called between transfers with the name of the step in progress: feed the watchdog with it.
  std::function<void(const char*)> beat{};
};

struct SaveReport {
  std::filesystem::path folder;  // the committed one
  int64_t bytes = 0;             // of all files
  int64_t written_by_me = 0;     // bytes of datasets that this rank wrote
  int64_t pieces_by_me = 0;      // digests
  double seconds = 0;
  double write_seconds = 0;  // this rank: transfers and digests
  double sync_seconds = 0;
  double verify_seconds = 0;
};

// Collective. Throws on every rank alike, and then leaves earlier checkpoints untouched and no
// temporary folder: io_error (no space, quota, failed write: path, needed, free), locked (another
// run took the folder over), bad_data (an invalid dataset list, or the step exists).
SaveReport save(const comm::CommView& comm, const std::filesystem::path& folder, int64_t step,
                const Content& content, const SaveOptions& options = {});

// "step-000120"
std::string folder_name(int64_t step);

// Removes temporary folders that an earlier run left, and gives a checkpoint that was moved aside
// to be replaced its name back; call after taking the run lock and before looking for the newest
// one. Not collective.
void remove_leftovers(const std::filesystem::path& folder);

// The points of a commit at which [fault] can end the process, in their order ("ckpt.begin", ...).
const std::vector<std::string>& crash_points();

}  // namespace trireme::checkpoint
