#include "driver/checkpointing.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <thread>

#include "driver/resume_point.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/driver/commands.hpp"
#include "trireme/learn/same_inputs.hpp"
#include "trireme/report/exports.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
namespace {

// Where a checkpoint keeps them, and how long all ranks' parts are together.
struct StoredPart {
  const char* path;
  std::string StoredParts::*bytes;
  int64_t RunState::*total;
};
constexpr StoredPart stored_parts[] = {
    {"/experience/pending", &StoredParts::pending, &RunState::pending_bytes},
    {"/experience/unfinished", &StoredParts::unfinished, &RunState::unfinished_bytes},
    {"/experience/dispatch", &StoredParts::dispatch, &RunState::dispatch_bytes}};

// The fp32 arrays of a model that a checkpoint has, by the name of their group.
struct Part {
  const char* name;
  SavedArray array;
};
std::vector<Part> parts_of(const SavedModel& saved) {
  std::vector<Part> parts{{"weight", &zero::ShardedModel::master},
                          {"m", &zero::ShardedModel::moment1},
                          {"v", &zero::ShardedModel::moment2}};
  if (saved.average) parts.push_back({"ema", &zero::ShardedModel::average});
  return parts;
}

std::string path_of(const SavedModel& saved, const Part& part, const base::TensorSpec& tensor) {
  return base::text("/", saved.name, "/", part.name, "/", tensor.name);
}

// First byte of this rank's part among the byte strings of all ranks, and their total.
std::pair<int64_t, int64_t> byte_range(const comm::CommView& world, int64_t mine) {
  const auto sizes = world.gather_values(mine);
  const auto here = sizes.begin() + world.rank();
  return {std::accumulate(sizes.begin(), here, int64_t{0}),
          std::accumulate(sizes.begin(), sizes.end(), int64_t{0})};
}

bool lies_in(const std::filesystem::path& checkpoint, const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::equivalent(normal_path(checkpoint).parent_path(), folder, error) &&
         !error;
}

}  // namespace

void before_mpi() { checkpoint::open_library_before_mpi(); }

Checkpointing::Checkpointing(const config::Options& options, const comm::Roles& roles,
                             const RunFolder& folder, at::Device device, bool thread_multiple)
    : options_(options),
      roles_(roles),
      folder_(folder),
      mirror_(device),
      schedule_(options.ckpt, roles.world.size()),
      writer_(std::make_unique<checkpoint::BackgroundWriter>(roles.world, thread_multiple)) {}

Checkpointing::~Checkpointing() {
  for (const SavedModel& saved : models_) {
    if (saved.model) saved.model->before_change([](size_t) {});
  }
}

void Checkpointing::add(SavedModel model) {
  if (model.model && !mirror_.copies()) {
    model.model->before_change(
        [this, number = models_.size()](size_t parameter) { before_change(number, parameter); });
  }
  models_.push_back(std::move(model));
}

float* Checkpointing::on_host(const SavedModel& saved, SavedArray array, size_t parameter) {
  const int64_t bytes = saved.model->own(parameter).elements() * int64_t{sizeof(float)};
  return mirror_.add((saved.model->*array)(parameter), bytes);
}

checkpoint::Content Checkpointing::content(const RunState& state, const StoredParts& parts) {
  checkpoint::Content content;
  // One shard group writes; its replicas hold the same values.
  const bool writes = roles_.writes_shard();
  first_dataset_.clear();
  for (const SavedModel& saved : models_) {
    std::vector<size_t>& first = first_dataset_.emplace_back();
    for (size_t p = 0; p < saved.spec->parameters.size(); ++p) {
      first.push_back(content.datasets.size());
      if (!saved.spec->parameters[p].trainable) continue;
      for (const Part& part : parts_of(saved)) {
        const auto& tensor = saved.spec->parameters[p].spec;
        checkpoint::Dataset dataset{
            path_of(saved, part, tensor), tensor.shape, comm::DType::f32, {}, nullptr};
        if (writes) {
          dataset.block = saved.model->own(p);
          dataset.data = on_host(saved, part.array, p);
        }
        content.datasets.push_back(std::move(dataset));
      }
    }
  }
  for (const StoredPart& part : stored_parts) {
    if (state.*part.total == 0) continue;
    const std::string& bytes = parts.*part.bytes;
    const auto mine = static_cast<int64_t>(bytes.size());
    const auto [first, total] = byte_range(roles_.world, mine);
    content.datasets.push_back(
        {part.path, {total}, comm::DType::u8, {first, mine, 0, 1}, bytes.data()});
  }
  content.state = to_json(state);
  return content;
}

void Checkpointing::start(RunState state, const StoredParts& parts) {
  parts_ = parts;
  for (const StoredPart& part : stored_parts)
    state.*part.total = roles_.world.sum(static_cast<int64_t>((parts.*part.bytes).size()));
  state.resumed_from = obeyed_;
  auto saved = content(state, parts_);
  mirror_.to_host();  // nothing on CPUs
  saving_ = state.iteration;
  schedule_.began();
  best_ = state.best.iteration;
  checkpoint::SaveOptions options;
  options.keep = options_.ckpt.keep;
  options.pinned = state.best.iteration;
  options.resumed_from = resumed_from_;
  options.config_digest = learn::digest_of_text(state.deck);
  options.version = TRIREME_VERSION;
  options.beat = [](const char*) { base::tick(); };
  options.before_removal = [run = folder_.path()](int64_t step) {
    report::remove_export(run, checkpoint::folder_name(step));
  };
  options.lock = &folder_.lock();
  options.folder_lock = &folder_.checkpoint_lock();
  writer_->start(folder_.checkpoints(), state.checkpoint_step(), std::move(saved), options,
                 most_aside());
}

bool Checkpointing::holds(int64_t iteration) {
  finish(iteration);
  return committed_ == iteration;
}

void Checkpointing::save(const RunState& state, const StoredParts& parts, bool wait) {
  const base::Stopwatch watch;
  const trace::Region region{"checkpoint", state.iteration, trace::Category::phase};
  finish(state.iteration);
  start(state, parts);
  if (wait || !options_.ckpt.background) {
    if (!finish(state.iteration) && wait) {
      log::warning("this was the last save of the run: trying once more");
      std::this_thread::sleep_for(std::chrono::seconds(2));
      start(state, parts);
      committed(writer_->wait(), state.iteration);
    }
  }
  stalled_ += watch.seconds();
  schedule_.cost(watch.seconds());
}

void Checkpointing::look_after_save(int64_t iteration) {
  if (saving_ < 0 || !roles_.world.all(!writer_->busy())) return;
  finish(iteration);
}

bool Checkpointing::finish(int64_t iteration) {
  if (saving_ < 0) return true;
  const trace::Region region{"wait for the checkpoint", saving_, trace::Category::io};
  try {
    committed(writer_->wait(), saving_);
  } catch (const UserError& error) {
    if (!checkpoint::SaveSchedule::may_pass(error.code())) throw;
    const std::string news =
        schedule_.failed(error, std::exchange(saving_, -1), iteration, committed_);
    if (roles_.world.rank() == 0) log::warning(news);
    return false;
  }
  return true;
}

void Checkpointing::committed(const checkpoint::SaveReport& report, int64_t iteration) {
  committed_ = iteration;
  saving_ = -1;
  schedule_.committed();
  if (roles_.world.rank() != 0) return;
  checkpoint::link_best(folder_.checkpoints(), best_);
  log::info(base::text("checkpoint of iteration ", committed_, ": ", report.folder.string(), ", ",
                       base::human_bytes(static_cast<double>(report.bytes)), " in ",
                       base::human_seconds(report.seconds), writer_->copies_in_words()));
  if (const std::string news = schedule_.changed_interval(last_save_seconds()); !news.empty())
    log::info(news);
}

int64_t Checkpointing::most_aside() const {
  if (options_.ckpt.copy_aside == config::CopyAside::all)
    return std::numeric_limits<int64_t>::max();
  int64_t most = 0;
  for (const SavedModel& saved : models_) {
    if (saved.model)
      most = std::max(most, saved.model->largest_stage() * int64_t{sizeof(float)} *
                                std::ssize(parts_of(saved)));
  }
  return most;
}

void Checkpointing::before_change(size_t model, size_t parameter) {
  if (saving_ < 0 || !writer_->busy()) return;
  const size_t parts = parts_of(models_[model]).size();
  const size_t first = first_dataset_[model][parameter];
  if (writer_->written(first + parts - 1)) return;  // in their order: the others are, too
  const base::Stopwatch watch;
  const trace::Region region{"wait for the checkpoint", saving_, trace::Category::io};
  for (size_t i = first; i < first + parts; ++i) writer_->before_change(i);
  stalled_ += watch.seconds();
  schedule_.cost_more(watch.seconds());
}

std::optional<RunState> Checkpointing::find_and_load(StoredParts& parts) {
  const std::string& how = options_.ckpt.resume;
  if (how == "never") return std::nullopt;
  const trace::Region region{"resume", trace::no_argument, trace::Category::phase};
  const bool talks = roles_.world.rank() == 0;
  const bool named = how != "auto";
  if (named) obeyed_ = name_of_checkpoint(how);
  std::optional<RunState> state;
  const auto take = [&](checkpoint::Reader& reader, bool own) {
    state = load(reader, parts);
    if (own) resumed_from_ = {reader.manifest().fence, reader.manifest().step};
  };
  if (takes_named_checkpoint(how, folder_.checkpoints(), roles_.world)) {
    checkpoint::Reader reader(roles_.world, how);
    take(reader, lies_in(how, folder_.checkpoints()));
    if (talks)
      log::info(base::text("ckpt.resume: starting from ", how,
                           "; a restart goes on from what this run has saved by then"));
    return state;
  }
  if (talks && named) {
    log::info(base::text("ckpt.resume = ", how,
                         " was obeyed by an earlier start: going on from what the run has saved "
                         "since (to go back again,",
                         " move the checkpoints since then out of ", folder_.checkpoints().string(),
                         ")"));
  }
  checkpoint::load_newest(roles_.world, folder_.checkpoints(),
                          [&](checkpoint::Reader& reader) { take(reader, true); });
  return state;
}

std::optional<RunState> Checkpointing::resume(StoredParts& parts) {
  auto state = find_and_load(parts);
  began_behind_ = state ? state->iteration : -1;
  if (!state) return state;
  committed_ = state->iteration;
  best_ = state->best.iteration;
  if (roles_.world.rank() == 0)
    checkpoint::link_best(folder_.checkpoints(),
                          best_);  // a crash may have come between the commit and the link
  return state;
}

std::optional<int64_t> Checkpointing::began_behind() const {
  const int64_t iteration = began_behind_;
  return iteration == unknown ? std::nullopt : std::optional(iteration);
}

RunState Checkpointing::load(checkpoint::Reader& reader, StoredParts& parts) {
  const RunState state = run_state_from_json(reader.state());
  if (!command_.empty() && state.command != command_)
    throw checkpoint::Mismatch(base::text("the checkpoint in ", folder_.checkpoints().string(),
                                          " is one of `trireme ", state.command,
                                          "`: choose another run.dir or ckpt.resume = \"never\""));
  std::vector<checkpoint::ReadRequest> requests;
  for (const SavedModel& saved : models_) {
    reader.require_names(base::text("/", saved.name, "/weight/"), saved.spec->trainable_names(),
                         base::text(saved.name, ".freeze"));
    if (!saved.model) continue;
    for (size_t p = 0; p < saved.spec->parameters.size();
         ++p) {  // as content() goes: the mirror is the same, whoever takes it
      const base::Block block = saved.model->own(p);
      if (block.empty() || !saved.spec->parameters[p].trainable) continue;
      for (const Part& part : parts_of(saved)) {
        const auto& tensor = saved.spec->parameters[p].spec;
        requests.push_back({path_of(saved, part, tensor), tensor.shape, comm::DType::f32, block,
                            on_host(saved, part.array, p)});
      }
    }
  }
  // Read by the first rank and spread like what is new.
  for (const StoredPart& part : stored_parts) {
    std::string& bytes = parts.*part.bytes;
    bytes.clear();
    const int64_t total = state.*part.total;
    if (total == 0 || roles_.world.rank() != 0) continue;
    bytes.resize(static_cast<size_t>(total));
    requests.push_back({part.path, {total}, comm::DType::u8, {0, total, 0, 1}, bytes.data()});
  }
  reader.read(requests);
  mirror_.to_device();
  for (const SavedModel& saved : models_) {
    if (!saved.model) continue;
    saved.model->set_steps(state.training.*saved.steps);
    saved.model->refresh();
  }
  return state;
}

}  // namespace trireme::driver
