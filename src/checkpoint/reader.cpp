#include "trireme/checkpoint/reader.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <unordered_map>

#include "agree.hpp"
#include "hdf5_file.hpp"
#include "index.hpp"
#include "manifest.hpp"
#include "slab_writer.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::checkpoint {
namespace {

// Index and manifest as rank 0 found and checked them.
struct Opened {
  FullManifest manifest;
  std::string index;
};

Opened open_on_root(const std::filesystem::path& folder) {
  VALIDATE(std::filesystem::is_directory(folder), ExitCode::input_missing,
           "there is no checkpoint ", folder.string());
  Opened opened;
  opened.manifest = read_manifest(folder);
  const std::filesystem::path index_path = folder / index_name;
  opened.index = base::read_file(index_path, static_cast<uint64_t>(opened.manifest.index_bytes));
  VALIDATE(to_hex(xxh3(std::as_bytes(std::span(opened.index)))) == opened.manifest.index_digest,
           ExitCode::bad_data, index_path.string(),
           " does not fit its digest in the manifest: it was changed after the save");
  const auto entries = index_from_bytes(opened.index, index_path.string());
  const std::filesystem::path data = folder / data_name;
  VALIDATE(metadata_digest(data, metadata_ranges(entries, opened.manifest.data_bytes)) ==
               opened.manifest.metadata_digest,
           ExitCode::bad_data, data.string(),
           ": the HDF5 metadata do not fit their digest: the file was changed after the save");
  return opened;
}

void copy_rectangle(const std::byte* from, const base::Block& source, std::byte* to,
                    const base::Block& target, int64_t element_bytes) {
  const auto run = base::copy_between(source, target);
  if (!run) return;
  for (int64_t r = 0; r < run->rows; ++r) {
    std::memcpy(to + (run->target_offset + r * run->target_stride) * element_bytes,
                from + (run->source_offset + r * run->source_stride) * element_bytes,
                static_cast<size_t>(run->columns * element_bytes));
  }
}

bool contains(const base::Block& outer, const base::Block& inner) {
  return base::intersect(outer, inner) == inner;
}

}  // namespace

struct Reader::State {
  comm::CommView comm;
  std::filesystem::path folder;
  std::filesystem::path data_path;
  FullManifest manifest;
  std::vector<IndexEntry> entries;
  std::vector<DatasetInfo> infos;
  std::unordered_map<std::string, size_t> by_path;
  base::FileDescriptor data;
  std::string state;
  ReadCounters counters;
  std::vector<std::byte> scratch;

  void open();
  const IndexEntry& matching(const ReadRequest& request) const;
  void read_one(const ReadRequest& request);
  void read_piece_into(const IndexEntry& entry, const Slab& slab, const Pieces& pieces,
                       int64_t piece, const base::Block& wanted, std::byte* into);
  void check(const IndexEntry& entry, const base::Block& piece, std::span<const std::byte> bytes,
             const Digest& expected);
  void advise(const ReadRequest& request) const;
};

void Reader::State::open() {
  Opened opened;
  std::string manifest_text;
  agreed_on_root(comm, [&] {
    opened = open_on_root(folder);
    manifest_text = to_json(opened.manifest);
  });
  manifest = manifest_from_json(comm.broadcast(std::move(manifest_text), 0), manifest_name);
  entries = index_from_bytes(comm.broadcast(std::move(opened.index), 0), index_name);
  for (size_t e = 0; e < entries.size(); ++e) {
    const IndexEntry& entry = entries[e];
    by_path.emplace(entry.path, e);
    if (entry.path != state_path)
      infos.push_back({entry.path, entry.shape, element_type(entry.type), entry.bytes()});
  }
  agreed(comm, [&] {
    data = base::open_read(data_path);
    const auto at = by_path.find(state_path);
    VALIDATE(at != by_path.end(), ExitCode::bad_data, data_path.string(), " has no ", state_path);
    const IndexEntry& entry = entries[at->second];
    state.resize(static_cast<size_t>(entry.bytes()));
    read_one({state_path, entry.shape, comm::DType::u8, {0, entry.rows(), 0, 1}, state.data()});
  });
  counters = {};
}

const IndexEntry& Reader::State::matching(const ReadRequest& request) const {
  const auto at = by_path.find(request.path);
  const auto refuse = [&](const auto&... why) {
    throw Mismatch(base::text(folder.string(), " does not fit this run (", why...));
  };
  if (at == by_path.end())
    refuse("it has no ", request.path, "): it was saved from another model or with other options");
  const IndexEntry& entry = entries[at->second];
  if (entry.shape != request.shape) {
    refuse(request.path, " has the shape ", base::shape_text(entry.shape), ", this run needs ",
           base::shape_text(request.shape), "): it was saved from another model");
  }
  if (element_type(entry.type) != request.type) {
    refuse(request.path, " holds ", to_string(entry.type), ", this run needs ",
           to_string(stored_type(request.type)), "): use the dtype of the run that saved it");
  }
  const base::Block whole{0, entry.rows(), 0, entry.columns()};
  VALIDATE(request.block.empty() || contains(whole, request.block), ExitCode::internal,
           "a request lies outside of ", request.path);
  return entry;
}

void Reader::State::check(const IndexEntry& entry, const base::Block& piece,
                          std::span<const std::byte> bytes, const Digest& expected) {
  const Digest found = xxh3(bytes);
  VALIDATE(found == expected, ExitCode::bad_data, data_path.string(), ": ", entry.path,
           " is damaged in rows ", piece.row, " to ", piece.row + piece.rows - 1, " (digest ",
           to_hex(found), ", saved as ", to_hex(expected), ")");
  ++counters.pieces;
}

void Reader::State::read_piece_into(const IndexEntry& entry, const Slab& slab, const Pieces& pieces,
                                    int64_t piece, const base::Block& wanted, std::byte* into) {
  const int64_t element_bytes = size_of(entry.type);
  const base::Block block = pieces.block(piece);
  const int64_t bytes = block.elements() * element_bytes;
  // Whole rows of the request land where they belong; other pieces are cut out of a copy.
  const bool direct = contains(wanted, block) && block.columns == wanted.columns;
  std::byte* at =
      direct ? into + (block.row - wanted.row) * wanted.columns * element_bytes : nullptr;
  if (!direct) {
    scratch.resize(std::max(scratch.size(), static_cast<size_t>(bytes)));
    at = scratch.data();
  }
  read_piece(data.get(), data_path, entry, block, at);
  counters.read += bytes;
  base::tick();
  check(entry, block, std::span(at, static_cast<size_t>(bytes)),
        entry.digests[slab.first_digest + static_cast<size_t>(piece)]);
  if (!direct) copy_rectangle(at, block, into, wanted, element_bytes);
}

void Reader::State::read_one(const ReadRequest& request) {
  const IndexEntry& entry = matching(request);
  if (request.block.empty()) return;
  for (const Slab& slab : entry.slabs) {
    const base::Block common = base::intersect(slab.block, request.block);
    if (common.empty()) continue;
    const Pieces pieces(slab.block, size_of(entry.type));
    const int64_t last = pieces.first_with(common.row + common.rows - 1);
    for (int64_t p = pieces.first_with(common.row); p <= last; ++p) {
      read_piece_into(entry, slab, pieces, p, request.block, static_cast<std::byte*>(request.into));
    }
  }
  counters.wanted += request.block.elements() * size_of(entry.type);
}

// Asks the kernel to fetch the rows of a request: its own read-ahead is too short for the devices
// of today.
void Reader::State::advise(const ReadRequest& request) const {
  const auto at = by_path.find(request.path);
  if (at == by_path.end() || request.block.empty()) return;
  const IndexEntry& entry = entries[at->second];
  const int64_t row_bytes = entry.columns() * size_of(entry.type);
  ::posix_fadvise(data.get(), entry.offset + request.block.row * row_bytes,
                  request.block.rows * row_bytes, POSIX_FADV_WILLNEED);
}

Reader::Reader(const comm::CommView& comm, std::filesystem::path folder)
    : state_(std::make_unique<State>()) {
  trace::Region region{"checkpoint open", trace::no_argument, trace::Category::io};
  state_->comm = comm;
  state_->folder = std::move(folder);
  state_->data_path = state_->folder / data_name;
  state_->open();
}
Reader::~Reader() = default;

const Manifest& Reader::manifest() const { return state_->manifest; }
const std::string& Reader::state() const { return state_->state; }
const std::vector<DatasetInfo>& Reader::datasets() const { return state_->infos; }
const ReadCounters& Reader::counters() const { return state_->counters; }

const DatasetInfo* Reader::find(const std::string& path) const {
  for (const DatasetInfo& info : state_->infos) {
    if (info.path == path) return &info;
  }
  return nullptr;
}

void Reader::require_names(const std::string& folder, const std::vector<std::string>& names,
                           const std::string& key) const {
  const std::set<std::string_view> wanted(names.begin(), names.end());
  std::string problem;
  for (const DatasetInfo& info : state_->infos) {
    if (problem.empty() && info.path.starts_with(folder) &&
        !wanted.contains(std::string_view(info.path).substr(folder.size())))
      problem = base::text("has ", info.path, ", which this run does not train");
  }
  for (const std::string& name : names) {
    if (problem.empty() && find(folder + name) == nullptr)
      problem = base::text("has no ", folder, name, ", which this run trains");
  }
  if (problem.empty()) return;
  throw Mismatch(base::text(state_->folder.string(), " does not fit this run (it ", problem,
                            "): it was saved from another model or with another ", key,
                            "; take that of its deck, or begin in another run.dir"));
}

void Reader::read(std::span<const ReadRequest> requests) {
  constexpr int64_t ahead = int64_t{64} << 20;
  trace::Region region{"checkpoint read", trace::no_argument, trace::Category::io};
  base::Stopwatch watch;
  agreed(state_->comm, [&] {
    size_t advised = 0;
    int64_t outstanding = 0;
    auto bytes_of = [](const ReadRequest& r) {
      return r.block.empty() ? 0 : r.block.elements() * static_cast<int64_t>(comm::size_of(r.type));
    };
    for (const ReadRequest& request : requests) {
      for (; advised < requests.size() && outstanding < ahead; ++advised) {
        state_->advise(requests[advised]);
        outstanding += bytes_of(requests[advised]);
      }
      state_->read_one(request);
      outstanding -= bytes_of(request);
      region.add_bytes(bytes_of(request));
    }
  });
  state_->counters.seconds += watch.seconds();
}

void Reader::verify() {
  State& s = *state_;
  // Loading needs no HDF5 library, only the places that the index names: a library that is not made
  // for hostile files walks over the file here alone.
  agreed_on_root(s.comm, [&] { check_layout(s.data_path, s.entries); });
  agreed(s.comm, [&] {
    int64_t number = 0;  // pieces go round the ranks
    for (const IndexEntry& entry : s.entries) {
      for (const Slab& slab : entry.slabs) {
        const Pieces pieces(slab.block, size_of(entry.type));
        for (int64_t p = 0; p < pieces.count(); ++p) {
          if (number++ % s.comm.size() != s.comm.rank()) continue;
          const base::Block block = pieces.block(p);
          std::vector<std::byte>& into = s.scratch;
          into.resize(
              std::max(into.size(), static_cast<size_t>(block.elements() * size_of(entry.type))));
          // A piece that is wanted whole lands "direct" at the start of the buffer.
          s.read_piece_into(entry, slab, pieces, p, block, into.data());
        }
      }
    }
  });
}

namespace {

// Steps in the order in which to try them: folders whose manifest is not whole first, so that the
// loss is reported, then the latest save.
std::vector<int64_t> candidates(const std::filesystem::path& folder) {
  std::vector<int64_t> whole;
  for (const Position& found : list_committed(folder)) whole.push_back(found.step);
  std::vector<int64_t> steps = list_steps(folder);
  std::erase_if(steps, [&](int64_t step) {
    return std::find(whole.begin(), whole.end(), step) != whole.end();
  });
  steps.insert(steps.end(), whole.begin(), whole.end());
  return steps;
}

}  // namespace

std::optional<int64_t> load_newest(const comm::CommView& comm, const std::filesystem::path& folder,
                                   const std::function<void(Reader&)>& load) {
  std::vector<int64_t> steps;
  agreed_on_root(comm, [&] { steps = candidates(folder); });
  int64_t count = comm.broadcast_value(static_cast<int64_t>(steps.size()), 0);
  steps.resize(static_cast<size_t>(count));
  comm.broadcast(steps.data(), count, comm::DType::i64, 0);
  std::string failures;
  for (const int64_t step : steps) {
    try {
      Reader reader(comm, folder / folder_name(step));
      require_step(reader.manifest(), folder / folder_name(step), step);  // the same on every rank
      load(reader);
      if (!failures.empty() && comm.rank() == 0)
        log::warning(base::text("resuming from the older checkpoint ", folder_name(step)));
      return step;
    } catch (const Mismatch&) { throw; } catch (const UserError& error) {
      if (error.code() != ExitCode::bad_data) throw;
      if (comm.rank() == 0)
        log::error(base::text("CHECKPOINT DAMAGED: ", error.what(), "; trying the one before"));
      failures += base::text("\n  ", error.what());
    }
  }
  VALIDATE(steps.empty(), ExitCode::bad_data, "no checkpoint in ", folder.string(),
           " is whole:", failures);
  return std::nullopt;
}

}  // namespace trireme::checkpoint
