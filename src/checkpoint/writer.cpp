// The order of a save; each line is a crash point after which a load finds the old or the new
// checkpoint, whole:
//   preflight of the free space -> temporary folder -> layout by HDF5 -> data by every rank ->
//   pages that ranks share, by one of them -> fsync -> a random piece of each rank, and pieces
//   where two ranks meet, read back -> index -> manifest -> fsync of the folder -> vote -> fence ->
//   rename -> fsync of the parent -> `latest` -> removal of old ones.
#include "trireme/checkpoint/writer.hpp"

#include <fcntl.h>

#include <algorithm>
#include <optional>

#include "agree.hpp"
#include "commit.hpp"
#include "digest.hpp"
#include "file_steps.hpp"
#include "hdf5_file.hpp"
#include "index.hpp"
#include "manifest.hpp"
#include "page_edges.hpp"
#include "read_back.hpp"
#include "save_through.hpp"
#include "slab_writer.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/fault_point.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/trace/guards.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::checkpoint {
namespace {

constexpr double space_factor = 1.1;

// One save in progress on one rank.
class Save {
 public:
  Save(const comm::CommView& comm, std::filesystem::path folder, int64_t step,
       const Content& content, const SaveOptions& options, DataGate& gate)
      : comm_(comm),
        folder_(std::move(folder)),
        step_(step),
        content_(content),
        options_(options),
        gate_(gate),
        fence_(options.lock != nullptr ? options.lock->fence() : 0),
        temporary_(temporary_folder(folder_, step, fence_)),
        data_file_(temporary_ / data_name),
        root_(comm.rank() == 0) {}

  SaveReport run();

 private:
  void describe();
  void gather_blocks();
  void preflight();
  void create();
  void write();
  void verify_sample();
  void gather_digests();
  void write_index_and_manifest();
  void vote_and_commit();
  void beat(const char* where) const {
    if (options_.beat) options_.beat(where);
  }
  std::filesystem::path committed() const { return folder_ / folder_name(step_); }

  const comm::CommView& comm_;
  std::filesystem::path folder_;
  int64_t step_;
  const Content& content_;
  const SaveOptions& options_;
  DataGate& gate_;
  int64_t fence_;
  std::filesystem::path temporary_;
  std::filesystem::path data_file_;
  bool root_;

  std::vector<IndexEntry>
      entries_;  // datasets of the content, then /state; slabs and digests on rank 0
  std::vector<base::Block> blocks_;  // rank 0: [rank][dataset]
  int64_t file_bytes_ = 0;
  std::vector<WrittenSlab> mine_;  // written by this rank
  SaveReport report_;
};

void check_options(const SaveOptions& options, int64_t step, const Content& content) {
  VALIDATE(options.keep >= 2, ExitCode::configuration, "ckpt.keep = ", options.keep,
           " (a checkpoint is deleted only when a later one is committed): use 2 or more");
  VALIDATE(step >= 0, ExitCode::configuration, "a checkpoint cannot have the step ", step);
  for (const Dataset& d : content.datasets) {
    VALIDATE(d.path.starts_with('/') && d.path != state_path, ExitCode::configuration, "'", d.path,
             "' cannot name a dataset");
    VALIDATE(d.block.empty() || d.data != nullptr, ExitCode::internal, "no data for ", d.path);
  }
}

void Save::describe() {
  agreed(comm_, [&] { check_options(options_, step_, content_); });
  for (const Dataset& d : content_.datasets) {
    IndexEntry entry;
    entry.path = d.path;
    entry.type = stored_type(d.type);
    entry.shape = d.shape;
    entries_.push_back(std::move(entry));
  }
  const auto state_bytes =
      comm_.broadcast_value<int64_t>(static_cast<int64_t>(content_.state.size()), 0);
  IndexEntry state;
  state.path = state_path;
  state.type = StoredType::text;
  state.shape = {state_bytes};
  entries_.push_back(std::move(state));

  const std::string list = to_bytes(entries_);
  const Digest digest = xxh3(std::as_bytes(std::span(list)));
  agreed(comm_, [&] {
    const bool same = comm_.min<uint64_t>(digest[0]) == comm_.max<uint64_t>(digest[0]);
    VALIDATE(same, ExitCode::internal, "the ranks list different datasets for one checkpoint");
  });
}

void Save::gather_blocks() {
  std::vector<base::Block> mine;
  for (const Dataset& d : content_.datasets) mine.push_back(d.block);
  mine.push_back(root_ ? base::Block{0, entries_.back().shape[0], 0, 1} : base::Block{});
  const auto all = comm_.gather_ragged(std::span<const base::Block>(mine), 0);
  agreed_on_root(comm_, [&] {
    for (const auto& of_rank : all) {
      ASSERT(of_rank.size() == entries_.size());
      blocks_.insert(blocks_.end(), of_rank.begin(), of_rank.end());
    }
    for (size_t e = 0; e < entries_.size(); ++e) {
      size_t digests = 0;
      for (size_t at = e; at < blocks_.size(); at += entries_.size()) {
        if (blocks_[at].empty()) continue;
        entries_[e].slabs.push_back({blocks_[at], digests});
        digests += static_cast<size_t>(Pieces(blocks_[at], size_of(entries_[e].type)).count());
      }
      check_tiling(entries_[e]);
    }
  });
}

void Save::preflight() {
  agreed_on_root(comm_, [&] {
    int64_t bytes = 0;
    for (const IndexEntry& entry : entries_) bytes = base::checked_add(bytes, entry.bytes());
    std::filesystem::create_directories(folder_);
    const auto needed = static_cast<uint64_t>(space_factor * static_cast<double>(bytes));
    const uint64_t free = base::free_space(folder_);
    VALIDATE(free >= needed, ExitCode::io_error, "no space for a checkpoint in ", folder_.string(),
             " (needed ", base::human_bytes(static_cast<double>(needed)), ", free ",
             base::human_bytes(static_cast<double>(free)),
             "): free some, lower ckpt.keep, or set ckpt.path");
  });
  base::fault_point("ckpt.preflight");
}

void Save::create() {
  beat("checkpoint: layout");
  std::vector<int64_t> offsets(entries_.size() + 1);
  agreed_on_root(comm_, [&] {
    remove_quietly(temporary_);
    make_folder(temporary_);
    base::fault_point("ckpt.tmp_created");
    base::fault_point("ckpt.open", data_file_);
    file_bytes_ = lay_out(data_file_, entries_);
    const base::FileDescriptor fd = open_for_writing(data_file_);
    reserve(fd.get(), file_bytes_, data_file_);
    for (size_t e = 0; e < entries_.size(); ++e) offsets[e] = entries_[e].offset;
    offsets.back() = file_bytes_;
  });
  comm_.broadcast(offsets.data(), static_cast<int64_t>(offsets.size()), comm::DType::i64, 0);
  for (size_t e = 0; e < entries_.size(); ++e) entries_[e].offset = offsets[e];
  file_bytes_ = offsets.back();
  base::fault_point("ckpt.laid_out");
}

void Save::write() {
  trace::Region region{"checkpoint write", step_, trace::Category::io};
  const int64_t page_bytes = agreed_page_bytes(comm_);
  std::optional<SlabWriter> writer;
  base::Stopwatch watch;
  agreed(comm_, [&] {
    writer.emplace(data_file_, page_bytes, options_.beat);
    for (size_t d = 0; d < content_.datasets.size(); ++d) {
      if (d == content_.datasets.size() / 2) base::fault_point("ckpt.half_written");
      const Dataset& dataset = content_.datasets[d];
      const void* data = gate_.begin_write(d, dataset.data);
      if (!dataset.block.empty()) mine_.push_back(writer->write(entries_[d], dataset.block, data));
      gate_.end_write(d);
    }
    const IndexEntry& state = entries_.back();
    if (root_ && state.bytes() > 0)
      mine_.push_back(writer->write(state, {0, state.shape[0], 0, 1}, content_.state.data()));
    report_.written_by_me = writer->bytes();
    region.add_bytes(writer->bytes());
  });
  const std::vector<PageEdge> edges = edges_of_my_pages(comm_, writer->edges(), page_bytes);
  agreed(comm_, [&] {
    writer->write_edges(edges);
    report_.write_seconds = watch.seconds();
    base::fault_point("ckpt.written");
    watch.restart();
    beat("checkpoint: fsync");
    writer->sync_and_close();
    report_.sync_seconds = watch.seconds();
  });
  base::fault_point("ckpt.synced");
}

void Save::verify_sample() {
  const trace::Guarding guard{trace::Guard::read_back};
  base::Stopwatch watch;
  beat("checkpoint: verify");
  const auto seed = static_cast<uint64_t>(step_ * 1'000'003);
  const Borders borders =
      options_.verify ? exchange_borders(comm_, entries_, mine_, seed) : Borders{};
  agreed(comm_, [&] {
    if (options_.verify) {
      read_back_one(data_file_, mine_, seed + static_cast<uint64_t>(comm_.rank()));
      read_back_borders(data_file_, borders, comm_.rank());
    }
    const auto found = static_cast<int64_t>(std::filesystem::file_size(data_file_));
    VALIDATE(found == file_bytes_, ExitCode::io_error, data_file_.string(), " has ", found,
             " bytes instead of ", file_bytes_);
  });
  report_.verify_seconds = watch.seconds();
  base::fault_point("ckpt.verified");
}

// Digests travel in the order in which a rank wrote its slabs, which is that of the datasets.
void Save::gather_digests() {
  std::vector<Digest> mine;
  for (const WrittenSlab& slab : mine_)
    mine.insert(mine.end(), slab.digests.begin(), slab.digests.end());
  report_.pieces_by_me = static_cast<int64_t>(mine.size());
  const auto all = comm_.gather_ragged(std::span<const Digest>(mine), 0);
  if (!root_) return;
  std::vector<const Digest*> next;
  for (const auto& of_rank : all) next.push_back(of_rank.data());
  for (size_t e = 0; e < entries_.size(); ++e) {
    for (size_t rank = 0; rank < next.size(); ++rank) {
      const base::Block& block = blocks_[rank * entries_.size() + e];
      const auto count = static_cast<size_t>(Pieces(block, size_of(entries_[e].type)).count());
      entries_[e].digests.insert(entries_[e].digests.end(), next[rank], next[rank] + count);
      next[rank] += count;
    }
  }
}

void write_new_file(const std::filesystem::path& path, std::string_view content) {
  base::FileDescriptor fd = create_file(path);
  write_at(fd.get(), 0, std::as_bytes(std::span(content)), path);
  sync_descriptor(fd.get(), path);
  close_file(std::move(fd), path);
}

void Save::write_index_and_manifest() {
  agreed_on_root(comm_, [&] {
    beat("checkpoint: manifest");
    const std::string index = to_bytes(entries_);
    write_new_file(temporary_ / index_name, index);
    base::fault_point("ckpt.index_written");
    FullManifest manifest;
    manifest.format = format_version;
    manifest.step = step_;
    manifest.fence = fence_;
    manifest.world_size = comm_.size();
    manifest.version = options_.version;
    manifest.config_digest = options_.config_digest;
    manifest.saved = utc_now();
    manifest.data_bytes = file_bytes_;
    manifest.index_bytes = static_cast<int64_t>(index.size());
    manifest.metadata_digest = metadata_digest(data_file_, metadata_ranges(entries_, file_bytes_));
    manifest.index_digest = to_hex(xxh3(std::as_bytes(std::span(index))));
    const std::string text = to_json(manifest);
    write_new_file(temporary_ / manifest_name, text);
    base::fault_point("ckpt.manifest_written");
    base::sync_folder(temporary_);
    report_.bytes = file_bytes_ + manifest.index_bytes + static_cast<int64_t>(text.size());
  });
  base::fault_point("ckpt.tmp_synced");
}

void Save::vote_and_commit() {
  base::fault_point("ckpt.voted");  // the agreement of the step before was the vote: every rank's
                                    // data are on the device
  beat("checkpoint: commit");
  agreed_on_root(comm_, [&] {
    for (const RunLock* lock : {options_.lock, options_.folder_lock}) {
      VALIDATE(lock == nullptr || lock->still_mine(), ExitCode::locked,
               "another run has taken over ", lock->folder().string(),
               ", or the claim of this one was moved away with the folder (it holds fence ",
               lock->fence(), "): nothing was committed");
    }
    commit(temporary_, folder_, step_,
           {.fence = fence_,
            .keep = options_.keep,
            .pinned = options_.pinned,
            .resumed_from = options_.resumed_from,
            .before_removal = options_.before_removal});
  });
}

SaveReport Save::run() {
  base::Stopwatch watch;
  base::fault_point("ckpt.begin");
  describe();
  gather_blocks();
  preflight();
  try {
    create();
    write();
    verify_sample();
    gather_digests();
    write_index_and_manifest();
    vote_and_commit();
  } catch (const UserError&) {  // agreed: every rank is here
    if (root_) remove_quietly(temporary_);
    throw;
  }
  report_.bytes = comm_.broadcast_value(report_.bytes, 0);
  report_.folder = committed();
  report_.seconds = watch.seconds();
  return report_;
}

}  // namespace

SaveReport save_through(const comm::CommView& comm, const std::filesystem::path& folder,
                        int64_t step, const Content& content, const SaveOptions& options,
                        DataGate& gate) {
  trace::Region region{"checkpoint save", step, trace::Category::io};
  return Save(comm, folder, step, content, options, gate).run();
}

SaveReport save(const comm::CommView& comm, const std::filesystem::path& folder, int64_t step,
                const Content& content, const SaveOptions& options) {
  DataGate direct;
  return save_through(comm, folder, step, content, options, direct);
}

}  // namespace trireme::checkpoint
