#include "trireme/comm/watchdog.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/life_messages.hpp"
#include "comm/shard_exchange_parts.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/trace/activity.hpp"
#include "trireme/trace/guards.hpp"

namespace trireme::comm {
namespace {

constexpr double patience_share =
    0.9;  // of the deadline: whoever knows what it waits for speaks first
constexpr auto hang = "HANG: ";
constexpr double others_may_speak = 1;  // seconds between the first words and the end of the job

// Work that may never return, in a thread that nobody waits for.
template <class F>
void in_background(F work) {
  try {
    std::thread(std::move(work)).detach();
  } catch (const std::system_error&) {  // no thread to be had: better without these words than not
                                        // at all
  }
}

double thread_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

std::string json_text(std::string text) {
  std::replace(text.begin(), text.end(), '"', '\'');
  std::replace(text.begin(), text.end(), '\\', '/');
  return '"' + text + '"';
}

}  // namespace

class Watchdog::State {
 public:
  State(const CommView& world, WatchdogOptions options)
      : world_(world),
        options_(std::move(options)),
        lives_(world.rank() == 0 ? static_cast<size_t>(world.size()) : 1) {
    if (world.size() > 1 && options_.thread_multiple)
      messages_ = std::make_unique<LifeMessages>(world);
    device_support().patience = patience_share * options_.deadlines.usual;
    last_look_ = base::monotonic_seconds();
    thread_ = std::thread([this] { watch(); });
  }

  job::StopReason heard_wish() const { return wish_; }
  base::Written heard_written() const { return {answers_, tokens_}; }

  void stop(bool alone) {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_all();
    thread_.join();
    if (!messages_) return;
    if (alone) {
      LifeMessages::abandon(std::move(messages_));
    } else {
      leave();
    }
  }

 private:
  // More between two looks: the process itself stood still.
  double longest_step() const { return 2 * options_.look_every; }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::duration<double>(options_.look_every),
                           [this] { return done_; })) {
      look_around();
      const double used = thread_seconds();
      trace::add_guard_seconds(trace::Guard::liveness, used - std::exchange(used_, used));
    }
  }

  void look_around() {
    const double now = base::monotonic_seconds();
    const double awake = std::min(now - std::exchange(last_look_, now), longest_step());
    look_at_myself(awake);
    if (const auto words = judge(awake)) end_job(*words);
  }

  // Ranks come to the end at different times. Until the last one is there, each goes on telling
  // that it lives, and hears who does not.
  void leave() {
    const trace::Collective collective{"barrier", "watchdog", 0};
    messages_->begin_leaving();
    while (messages_ && !messages_->all_leave()) {
      sleep_for(0.001);
      if (base::monotonic_seconds() - last_look_ >= options_.look_every) look_around();
    }
    if (messages_) messages_->finish();
  }

  void look_at_myself(double awake) {
    mine_ = options_.look();
    silent_ += awake;
    if (const uint64_t count = options_.activity(); count != seen_) {
      seen_ = count;
      silent_ = 0;
    }
    mine_.silent = silent_;
    wish_ = std::max(wish_.load(), mine_.wish);
    if (!messages_ || !messages_->leads()) written_by(mine_.written);
  }

  void written_by(const base::Written& all) {
    answers_ = all.answers;
    tokens_ = all.tokens;
  }

  // An error of the GPUs' communication library ends the job as a hang does: the main thread
  // waits for ever, or will.
  std::optional<std::string> find_trouble() const {
    const auto ask = device_support().find_trouble;
    return ask ? ask() : std::nullopt;
  }

  std::optional<std::string> judge(double awake) {
    const auto trouble = find_trouble();
    if (trouble && messages_) messages_->end_job(*trouble);
    if (trouble) return trouble;
    if (!messages_) return judge_alone();
    try {
      return exchange(awake);
    } catch (const UserError& error) {  // MPI refuses: the main thread will hear of it too
      log::warning(base::text("the watchdog judges alone from now on (", error.what(), ")"));
      LifeMessages::abandon(std::move(messages_));
      return std::nullopt;
    }
  }

  // The fault in the words of the rank that found it; nullopt: none.
  std::optional<std::string> exchange(double awake) {
    messages_->report(mine_);
    messages_->receive();
    wish_ = std::max(wish_.load(), messages_->wish());
    if (messages_->ended()) return messages_->ended();
    auto heard = messages_->take_heard();
    for (size_t rank = 0; rank < lives_.size(); ++rank) {
      lives_[rank].unheard += awake;
      if (!heard[rank]) continue;
      lives_[rank] = {std::move(*heard[rank]), 0};
    }
    std::optional<std::string> words;
    if (messages_->leads()) {
      base::Written all;
      for (const RankLife& life : lives_) {
        all.answers += life.sign.written.answers;
        all.tokens += life.sign.written.tokens;
      }
      written_by(all);
      words = find_hang(lives_, options_.deadlines);
    } else if (options_.deadlines.usual > 0 &&
               lives_[0].unheard > options_.deadlines.usual + longest_step()) {
      words =
          base::text("rank 0 has not been heard of for ", base::human_seconds(lives_[0].unheard),
                     " (the process is stopped, or its node or network is gone); rank ",
                     world_.rank(), " ", place_of(mine_));
    }
    if (!words) return std::nullopt;
    words = hang + *words;
    messages_->end_job(*words);
    return words;
  }

  std::optional<std::string> judge_alone() const {
    const double deadline = deadline_of(mine_, options_.deadlines);
    if (deadline <= 0 || silent_ <= deadline) return std::nullopt;
    const std::string place = base::text("rank ", world_.rank(), " ", place_of(mine_), ", for ",
                                         base::human_seconds(silent_));
    if (world_.size() == 1 || !mine_.waiting)
      return base::text(hang, "a rank makes no progress: ", place);
    return base::text(hang,
                      "a rank waits for another, which cannot be named since this MPI gives less "
                      "than MPI_THREAD_MULTIPLE: ",
                      place);
  }

  [[noreturn]] void end_job(const std::string& words) {
    const std::string message =
        base::text(words, ". Rank ", world_.rank(), " itself: ", place_of(mine_),
                   ". The job ends (exit code 70): a retry goes on from the last ",
                   "checkpoint; a rank, node or file system that does this again needs a look");
    // Copies, since this object may be gone when they are used.
    in_background([line = "error: " + message + "\n"] {
      [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, line.data(), line.size());
    });
    in_background([folder = options_.report_folder, rank = world_.rank(), sign = mine_, words] {
      write_report(folder, rank, sign, words);
    });
    in_background([message] { log::only_files(log::Level::error, message); });
    sleep_for(messages_ && messages_->ended() ? 2 * others_may_speak : others_may_speak);
    abort_job(static_cast<int>(ExitCode::internal));
  }

  static void write_report(const std::filesystem::path& folder, int rank, const LifeSign& sign,
                           const std::string& words) {
    std::array<char, 32> name{};
    std::snprintf(name.data(), name.size(), "rank-%05d.json", rank);
    try {
      std::filesystem::create_directories(folder);
      base::write_file_atomically(
          folder / name.data(),
          base::text("{\"rank\":", rank, ",\"host\":", json_text(sign.host),
                     ",\"where\":", json_text(sign.where), ",\"call\":", json_text(sign.call),
                     ",\"silent_seconds\":", sign.silent, ",\"verdict\":", json_text(words),
                     "}\n"));
    } catch (const std::exception&) {  // the words on stderr are what counts
    }
  }

  CommView world_;
  WatchdogOptions options_;
  std::vector<RankLife> lives_;  // on rank 0 of all; elsewhere [0] only
  std::unique_ptr<LifeMessages> messages_;
  LifeSign mine_;
  double silent_ = 0;
  uint64_t seen_ = 0;
  double last_look_ = 0;
  double used_ = 0;  // of the thread's processor time, so far
  std::atomic<job::StopReason> wish_{job::StopReason::none};
  std::atomic<int64_t> answers_{0}, tokens_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

Watchdog::Watchdog(const CommView& world, WatchdogOptions options)
    : state_(std::make_unique<State>(world, std::move(options))) {}

job::StopReason Watchdog::heard_wish() const { return state_->heard_wish(); }
base::Written Watchdog::heard_written() const { return state_->heard_written(); }

Watchdog::~Watchdog() { state_->stop(std::uncaught_exceptions() > 0); }

}  // namespace trireme::comm
