// Programs of the user's beside a rank: they get requests and give answers, a line each, on their
// standard streams, in any order. A process that has requests and gives no answer for the timeout
// is late; the time in which this rank does not call poll() does not count. After a crash, or when
// it is late, a process is started again and asked for the rest; when it has failed too often for
// a request, the deck's outage says whether that ends the run, is waited for, or the request is
// given up. Lines that are no answers (marked "stdout: ") and the processes' stderr go to a log
// file, whose last lines are part of the errors. Processes, and what they start in their process
// groups, are killed when this process ends in whatever way.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/files.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/config/options.hpp"

namespace trireme::plugin {

// How a program is started, and what it is called in messages.
struct Program {
  std::string kind;     // "reward plugin", "environment"
  std::string name;     // among those of its kind; may be empty
  std::string section;  // of the deck, with `retries` and `outage`
  std::string key;      // of the deck, of its command
  std::vector<std::string> command;
  std::string who() const { return name.empty() ? kind : kind + " " + name; }
};

// After an answer that makes no sense: an error (bad_data) ends the run, or counts as a failure of
// its process.
enum class Nonsense { ends_run, is_failure };

struct Rules {
  int64_t processes = 1;
  double timeout = 60;  // seconds
  int64_t retries = 3;  // of each request
  config::PluginOutage outage = config::PluginOutage::stop;
  Nonsense nonsense = Nonsense::ends_run;
  // That every answer has; while nothing is asked it is an error. Empty: numbers of requests are
  // used once, so that take() finds such answers.
  std::string answer_mark;
  std::filesystem::path log_file;  // empty: kept for errors only
};

// Who asks: the requests by number, and what the lines of the programs mean.
class Requests {
 public:
  virtual ~Requests() = default;
  // Takes a line: the request that it answers; nullopt: it is no answer. Throws UserError(bad_data)
  // for answers that make no sense.
  virtual std::optional<uint64_t> take(std::string_view line) = 0;
  virtual std::string where(uint64_t id) const = 0;  // a request in words
  // The process that was asked has failed: how often that was so for this request; 0: it is not
  // needed any more.
  virtual int64_t count_failure(uint64_t id) = 0;
  // A request that has failed too often, with the outage `skip`; `why`, in words.
  virtual void give_up(uint64_t id, const std::string& why) = 0;
  // Asks `process`, which is new, again for what `id` was to bring.
  virtual void ask_again(size_t process, uint64_t id) = 0;
};

struct Counters {
  int64_t retries = 0;   // requests that were asked again
  int64_t restarts = 0;  // of processes that failed or were late
};

class Process;
struct ProcessFailure;

class Programs {
 public:
  // Starts the processes; `requests` must live on. Throws UserError: input_missing or permission
  // where the program cannot be started.
  Programs(Program program, Rules rules, Requests& requests);
  ~Programs();
  Programs(const Programs&) = delete;
  Programs& operator=(const Programs&) = delete;

  size_t size() const { return processes_.size(); }
  // The one with the fewest unanswered requests; those that wait for a new start come last.
  size_t least_busy() const;
  void ask(size_t process, uint64_t id, std::string_view line);
  // A line without an answer; dropped where the process does not run.
  void tell(size_t process, std::string_view line);
  // Sends and receives what it can, and looks after processes that are late or gone. Does not wait.
  // Throws UserErrors: bad_data, unfit_environment.
  void poll();

  // Processes that have been in this place before the present or next one: what they knew is gone.
  int64_t life(size_t process) const;
  std::optional<pid_t> pid(size_t process) const;  // nullopt: it does not run
  Counters take_counters();                        // of the time since the last call

 private:
  void open_log();
  bool attend();
  void failed(size_t process, const ProcessFailure& failure);
  void warn(const ProcessFailure& failure, int64_t failures, size_t given_up) const;

  Program program_;
  Rules rules_;
  Requests& requests_;
  base::FileDescriptor log_;
  std::vector<std::unique_ptr<Process>> processes_;
  base::Stopwatch since_attended_;
  Counters counters_;
};

}  // namespace trireme::plugin
