// What of a run goes into a checkpoint, and back. Collective over world; only trainers hold
// tensors.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/run_folder.hpp"
#include "trireme/checkpoint/background.hpp"
#include "trireme/checkpoint/reader.hpp"
#include "trireme/checkpoint/save_schedule.hpp"
#include "trireme/comm/roles.hpp"
#include "trireme/config/options.hpp"
#include "trireme/driver/run_state.hpp"
#include "trireme/machine/host_mirror.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::driver {

// An fp32 array of a model, by parameter.
using SavedArray = zero::ShardedModel::Values (zero::ShardedModel::*)(size_t);

// A model that is saved: /<name>/{weight,m,v,ema}/<tensor> of its trainable parameters; frozen ones
// are those of the model that the run starts from. `model` is null on ranks that are no trainers.
struct SavedModel {
  std::string name;
  const model::ModelSpec* spec = nullptr;
  zero::ShardedModel* model = nullptr;
  bool average = false;
  int64_t learn::TrainingState::*steps = &learn::TrainingState::actor_steps;  // its optimizer's
};

// Bytes beside the tensors. A save takes each rank's part; a start has the parts of all ranks, one
// behind the other, on rank 0.
struct StoredParts {
  std::string pending;     // rollout that waits for the next iteration
  std::string unfinished;  // iteration that a stop interrupted
  std::string dispatch;    // what generators remember (rollout/dispatch.hpp)
};

class Checkpointing {
 public:
  // Collective. The saved state of the models lives on `device` (state_device()); from a GPU it
  // goes through host memory, which stays allocated for the run.
  Checkpointing(const config::Options& options, const comm::Roles& roles, const RunFolder& folder,
                at::Device device, bool thread_multiple);
  ~Checkpointing();

  // Checkpoints of another command are refused when one is loaded.
  void belong_to(std::string command) { command_ = std::move(command); }
  // In the order in which a step changes them: a save in the background is written in it.
  void add(SavedModel model);

  // Loads the newest checkpoint, or the one that ckpt.resume names, into the models; nullopt when
  // there is none or the deck says never. A name is obeyed once: later saves of the run say
  // so, and the next start goes on from there. `parts` receives the bytes that were stored.
  // Collective.
  std::optional<RunState> resume(StoredParts& parts);

  // Whether ckpt.interval is a time and it is over since the last save began. Local: one rank that
  // says so is enough (comm::agree_to_stop).
  bool time_is_due() const {
    return schedule_.time_is_due({saves(), last_save_seconds(), saving_ >= 0});
  }
  // After `iteration`: by the iterations of ckpt.interval, or since a save failed and its time has
  // come again.
  bool due(int64_t iteration) const { return schedule_.due(iteration); }
  int64_t until_due(int64_t iteration) const { return schedule_.until_due(iteration); }
  // Saves; in the background when the deck allows it and `wait` is false. A failure of files or
  // memory becomes a warning and a count (ckpt.max_failures); with `wait` there is a second try,
  // whose error is thrown. Every other error is thrown. Collective.
  void save(const RunState& state, const StoredParts& parts, bool wait);
  // Whether what stands behind `iteration` is committed already; waits for a save in progress.
  // Collective.
  bool holds(int64_t iteration);
  // What became of a save in the background, as soon as every rank knows: says that it was
  // committed, or that it failed and when it is tried again. After `iteration`; collective.
  void look_after_save(int64_t iteration);
  // Saves of this process that failed.
  int64_t failures() const { return schedule_.failures(); }
  // Seconds that saves have held this rank's main thread up since the last call.
  double take_stall() { return std::exchange(stalled_, 0.0); }

  // Iteration of the checkpoint that the run began with, -1: from nothing; nullopt: resume() is not
  // done yet. Any thread.
  std::optional<int64_t> began_behind() const;

  // Iteration of the last checkpoint that is committed for certain; -1: none.
  int64_t committed() const { return committed_; }
  // Saves that were committed by this process, and how long the last took from its start to the
  // commit. A save in the background counts as soon as it is done.
  int64_t saves() const { return writer_->committed(); }
  double last_save_seconds() const { return writer_->last_seconds().value_or(0); }
  bool busy() const { return writer_->busy(); }

 private:
  // The host's view of an array of this rank; null where there is none.
  float* on_host(const SavedModel& saved, SavedArray array, size_t parameter);
  checkpoint::Content content(const RunState& state, const StoredParts& parts);
  void start(RunState state, const StoredParts& parts);
  // Waits for the save in progress. False: it failed, and may be tried again from what `iteration`
  // leaves.
  bool finish(int64_t iteration);
  void committed(const checkpoint::SaveReport& report, int64_t iteration);
  // Before the optimizer changes a parameter of a model that a save may still read. Local.
  void before_change(size_t model, size_t parameter);
  // Bytes that a save in the background may have in copies.
  int64_t most_aside() const;
  std::optional<RunState> find_and_load(StoredParts& parts);
  RunState load(checkpoint::Reader& reader, StoredParts& parts);

  const config::Options& options_;
  const comm::Roles& roles_;
  const RunFolder& folder_;
  std::string command_;  // empty: any
  std::vector<SavedModel> models_;
  machine::HostMirror mirror_;  // before the writer, which reads it
  checkpoint::SaveSchedule schedule_;
  std::unique_ptr<checkpoint::BackgroundWriter> writer_;
  StoredParts parts_;                               // stay alive while the writer reads them
  std::vector<std::vector<size_t>> first_dataset_;  // in a save, by model and parameter
  int64_t saving_ = -1;
  int64_t committed_ = -1;
  double stalled_ = 0;
  int64_t best_ = -1;                                 // iteration that ckpt.best_metric prefers
  std::string obeyed_;                                // ckpt.resume's checkpoint, for what is saved
  std::optional<checkpoint::Position> resumed_from_;  // in the run's own folder
  static constexpr int64_t unknown = -2;
  std::atomic<int64_t> began_behind_{unknown};
};

}  // namespace trireme::driver
