// The user's programs next to a rank: they read requests and write answers on their standard
// streams, a line each, in any order. A process with requests that gives no answer for the timeout
// is late; time in which this rank does not call poll() does not count. After a crash, or if it is
// late, a process is restarted and gets the remaining requests. After too many failures of one
// request the deck's outage decides: end the run, wait, or give the request up. Lines that are not
// answers (marked "stdout: ") and the processes' stderr go to a log file; errors quote its last
// lines. Processes, and the processes that they start in their process groups, are killed when this
// process ends, however it ends.
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

// The command of a program, and its name in messages.
struct Program {
  std::string kind;     // "reward plugin", "environment"
  std::string name;     // among those of its kind; may be empty
  std::string section;  // of the deck, with `retries` and `outage`
  std::string key;      // of the deck, of its command
  std::vector<std::string> command;
  std::string who() const { return name.empty() ? kind : kind + " " + name; }
};

// After an invalid answer: an error (bad_data) ends the run, or the answer counts as a failure of
// its process.
enum class Nonsense { ends_run, is_failure };

struct Rules {
  int64_t processes = 1;
  double timeout = 60;  // seconds
  int64_t retries = 3;  // of each request
  config::PluginOutage outage = config::PluginOutage::stop;
  Nonsense nonsense = Nonsense::ends_run;
  // A text in every answer; without a request in flight such a line is an error. Empty: each number
  // is used for one request only, and take() recognises late answers.
  std::string answer_mark;
  std::filesystem::path log_file;  // empty: kept for errors only
};

// The owner of the requests: knows them by number and reads the programs' lines.
class Requests {
 public:
  virtual ~Requests() = default;
  // Takes a line. Returns the request that it answers; nullopt: it is not an answer. Throws
  // UserError(bad_data) for invalid answers.
  virtual std::optional<uint64_t> take(std::string_view line) = 0;
  virtual std::string where(uint64_t id) const = 0;  // a request in words
  // The process of this request has failed. Returns the number of failures of the request; 0: it is
  // not needed any more.
  virtual int64_t count_failure(uint64_t id) = 0;
  // Gives a request up that has failed too often (outage `skip`); `why`: the reason in words.
  virtual void give_up(uint64_t id, const std::string& why) = 0;
  // Sends the request `id` again, to `process`, which is new.
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
  // The process with the fewest unanswered requests; one that waits for a restart comes last.
  size_t least_busy() const;
  void ask(size_t process, uint64_t id, std::string_view line);
  // Sends a line that has no answer; dropped if the process does not run.
  void tell(size_t process, std::string_view line);
  // Sends and receives without waiting, and restarts processes that are late or have ended.
  // Throws UserErrors: bad_data, unfit_environment.
  void poll();

  // Number of earlier processes in this place; a new process knows nothing that they knew.
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
