#include "driver/run_folder.hpp"

#include <array>
#include <cstdio>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/config/deck.hpp"

namespace trireme::driver {
namespace {

void make_folders(const std::vector<std::filesystem::path>& folders) {
  try {
    for (const auto& folder : folders) {
      const base::FileWork work{"making", folder};
      std::filesystem::create_directories(folder);
    }
  } catch (const std::filesystem::filesystem_error& error) {
    throw UserError(
        *base::file_error_code(error),
        base::text("cannot create the run folder (", error.what(), "): choose another run.dir"));
  }
}

}  // namespace

RunFolder::RunFolder(const config::Options& options, const comm::CommView& world)
    : path_(options.run.dir), checkpoints_(options.ckpt_path()), deck_(config::dump_deck(options)) {
  comm::fail_together_on_root(world, [&] { make_folders({path_ / "logs", checkpoints_}); });
  lock_ = std::make_unique<checkpoint::RunLock>(
      world, path_,
      checkpoint::LockOptions{.take_over = options.run.take_over, .checkpoints = checkpoints_});
  std::error_code unknown;
  const bool apart = !std::filesystem::equivalent(
      path_, checkpoints_, unknown);  // ckpt.path may be run.dir, which is locked by now
  if (world.broadcast_value(apart, 0)) {
    checkpoint_lock_ = std::make_unique<checkpoint::RunLock>(
        world, checkpoints_,
        checkpoint::LockOptions{.take_over = options.run.take_over,
                                .gone = lock_->taken_from(),
                                .what = "folder of checkpoints (ckpt.path)"});
  }
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "rank-%05d.log", world.rank());
  log::open({.console = world.rank() == 0,
             .main_file = world.rank() == 0 ? path_ / "log.txt" : std::filesystem::path{},
             .rank_file = path_ / "logs" / name.data(),
             .level = options.run.log_level});
  comm::fail_together_on_root(world, [&] {
    checkpoint::remove_leftovers(checkpoints_);
    std::error_code ignored;
    const auto known = [&] {
      const base::FileWork work{"look", path_ / "deck.toml"};
      return std::filesystem::exists(path_ / "deck.toml", ignored);
    }();
    if (!known) keep_deck();
    const base::FileWork work{"removal", stop_file()};
    for (const auto& file : {obeyed_stop_file(), save_file()})
      std::filesystem::remove(file, ignored);  // asked the last run, not this one
    VALIDATE(!obey_stop_file(), ExitCode::stopped_with_checkpoint, "not started: the file ",
             stop_file().string(), " was there already, touched while ",
             "nobody ran here. It is called `stopped` now: start the same command again to go on");
  });
}

RunFolder::~RunFolder() { log::close(); }

void RunFolder::keep_deck() const {
  const std::filesystem::path deck = path_ / "deck.toml", given = path_ / "deck.given.toml";
  const base::FileWork work{"write", deck};
  const std::string text = base::read_if_there(deck);
  if (!text.empty() && !config::is_dump(text) && !std::filesystem::exists(given)) {
    base::write_file_atomically(given, text);
    log::info(base::text("the deck in the run folder is kept as ", given.string()));
  }
  base::write_file_atomically(deck, deck_);
}

bool RunFolder::obey_stop_file() const {
  const base::FileWork work{"rename", obeyed_stop_file()};
  std::error_code error;
  std::filesystem::rename(stop_file(), obeyed_stop_file(), error);
  if (error && error != std::errc::no_such_file_or_directory) {
    log::warning(base::text("the file ", stop_file().string(), " cannot be renamed (",
                            error.message(), "): remove it, or the next start ends at once"));
  }
  return !error;
}

}  // namespace trireme::driver
