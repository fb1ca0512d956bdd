// One process of a program: the requests that it has not answered, and the bytes between it and
// this rank.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/child_process.hpp"
#include "plugin/lines.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/plugin/programs.hpp"

namespace trireme::plugin {

// A failure of a process after which a new process may succeed.
struct ProcessFailure {
  std::string what;
  std::vector<std::string> messages;  // the last lines of its stderr
};

class Process {
 public:
  // Shared by all processes of a program; must live on.
  struct Setup {
    const Program& program;
    const Rules& rules;
    Requests& requests;
    std::filesystem::path log_file;  // of what they print beside answers
    int log = -1;                    // the same, open to read and append
  };

  // Starts the process.
  explicit Process(const Setup& setup);

  bool running() const { return process_ != nullptr; }
  pid_t pid() const { return process_->pid(); }
  size_t unanswered() const { return unanswered_.size(); }
  // Whether there is something to send or an answer to wait for.
  bool busy() const { return !unanswered_.empty() || (process_ && sent_ < outgoing_.size()); }
  int64_t life() const { return life_; }  // processes before the present or next one

  // Queues a request, or a line that has no answer; the latter is dropped if no process runs.
  void ask(uint64_t id, std::string_view line);
  void tell(std::string_view line);

  // The following throw ProcessFailure if the process has to be given up: then call stop().
  // Starts the process again if it has ended and requests wait for it.
  void start_when_due();
  // The descriptors to poll: its output and, with something to send, its input. Two entries.
  void watch(pollfd* ends) const;
  // Sends and receives what the two entries say is possible.
  void move_on(const pollfd* ends);
  void check_deadline() const;
  // This rank did not read its output for a while: its deadline starts again.
  void pardon() { quiet_.restart(); }

  // Ends the process. Returns its unanswered requests, in the order of asking.
  std::vector<uint64_t> stop();
  // Earliest start of the next process, from now on.
  void start_in(double seconds);
  std::vector<std::string> last_messages() const;

 private:
  void start();
  void refuse_unasked();
  size_t write_some(std::string_view text);
  void read_some();
  void take_line(std::string_view line);
  void ended();
  void send(std::string_view line);
  void note(std::string_view said) const;
  std::string standing() const;

  Setup setup_;
  std::unique_ptr<ChildProcess> process_;
  int64_t life_ = 0;
  off_t log_start_ = 0;               // of the log, when this process was started
  std::vector<uint64_t> unanswered_;  // in the order of asking
  size_t given_ = 0;                  // to this process
  std::string outgoing_;              // lines for it
  size_t sent_ = 0;                   // bytes of them that it has taken
  Lines lines_;                       // that it wrote
  base::Stopwatch quiet_;             // since its last answer, or since it has something to do
  base::Stopwatch stopped_;
  double pause_ = 0;  // between stopped_ and the next start
};

// ": its messages are in FILE and end with" and the lines, as far as there are any; the end of a
// message about a program.
std::string messages_text(const std::vector<std::string>& messages, const Rules& rules);

}  // namespace trireme::plugin
