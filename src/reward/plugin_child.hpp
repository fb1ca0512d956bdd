// One process of a reward plugin: the requests that it has not answered, and the bytes between it
// and this rank.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reward/child_process.hpp"
#include "reward/lines.hpp"
#include "trireme/base/stopwatch.hpp"

namespace trireme::reward {

// Why a process is given up that a new one may do better.
struct ChildFailure {
  std::string what;
  std::vector<std::string> messages;  // the last lines of its stderr
};

class PluginChild {
 public:
  // Settings shared by all processes of a plugin.
  struct Setup {
    std::string name;  // of the source, for messages
    std::vector<std::string> command;
    double timeout = 60;             // seconds
    std::filesystem::path log_file;  // of what they print beside answers
    int log = -1;                    // the same, open to read and append
    std::string log_hint;            // where a person finds it, for messages; empty: nowhere
    // Takes a line: the id that it answers; nullopt: it is no answer.
    std::function<std::optional<uint64_t>(std::string_view line)> take;
    std::function<std::string(uint64_t id)> where;  // a request in words
  };

  // Starts the process. `setup` must live on.
  explicit PluginChild(const Setup& setup);

  bool running() const { return process_ != nullptr; }
  pid_t pid() const { return process_->pid(); }
  size_t unanswered() const { return unanswered_.size(); }

  // Queues a request.
  void ask(uint64_t id, const std::string& line);

  // The rest throws ChildFailure where the process has to be given up: then stop() it.
  // Where it has ended and requests wait for it.
  void start_when_due();
  // What to wait for: its output and, while there is something to send, its input. Two entries.
  void watch(pollfd* ends) const;
  // Sends and receives what the two entries say is possible.
  void move_on(const pollfd* ends);
  void check_deadline() const;
  // Nobody listened to it for a while: its deadline starts anew.
  void pardon() { quiet_.restart(); }

  // Ends the process. Returns its unanswered requests, in the order of asking.
  std::vector<uint64_t> stop();
  // Earliest start of the next process, from now on.
  void start_in(double seconds);

 private:
  void start();
  void refuse_unasked();
  size_t write_some(std::string_view text);
  void read_some();
  void take_line(std::string_view line);
  void ended();
  void note(std::string_view said) const;
  std::string standing() const;
  std::vector<std::string> last_messages() const;

  const Setup& setup_;
  std::unique_ptr<ChildProcess> process_;
  off_t log_start_ = 0;               // of the log, when this process was started
  std::vector<uint64_t> unanswered_;  // in the order of asking
  size_t given_ = 0;                  // to this process
  std::string outgoing_;              // requests for it
  size_t sent_ = 0;                   // bytes of them that it has taken
  Lines lines_;                       // that it wrote
  base::Stopwatch quiet_;             // since its last answer, or since it has something to do
  base::Stopwatch stopped_;
  double pause_ = 0;  // between stopped_ and the next start
};

// ": its messages are in FILE and end with" and the lines, as far as there are any; the end of a
// message about a plugin.
std::string messages_text(const std::vector<std::string>& messages, const std::string& log_hint);

}  // namespace trireme::reward
