#include "plugin/process.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/plugin/answers.hpp"

namespace trireme::plugin {
namespace {

constexpr size_t longest_line = size_t{1} << 24;
constexpr std::string_view from_stdout = "stdout: ";  // in the log, beside the process's stderr
constexpr off_t tail_bytes = 65536;                   // of the log that is searched for messages
constexpr size_t shown_lines = 3, shown_bytes = 300;

// For a terminal.
std::string printable(std::string_view line) {
  std::string out(line.substr(0, shown_bytes));
  for (char& c : out) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    if (control) c = c == '\t' ? ' ' : '?';
  }
  return line.size() > shown_bytes ? out + "..." : out;
}

}  // namespace

std::string messages_text(const std::vector<std::string>& messages, const Rules& rules) {
  const std::string file =
      rules.log_file.empty() ? "" : base::text(": its messages are in ", rules.log_file.string());
  if (messages.empty()) return file;
  return base::text(file.empty() ? ": its messages end with" : file + " and end with", "\n    ",
                    base::join(messages, "\n    "));
}

Process::Process(const Setup& setup) : setup_(setup) { start(); }

void Process::start() {
  log_start_ = std::max<off_t>(0, ::lseek(setup_.log, 0, SEEK_END));
  process_ = std::make_unique<ChildProcess>(setup_.program, setup_.log_file);
  pause_ = 0;
  quiet_.restart();
}

void Process::start_when_due() {
  if (!process_ && !unanswered_.empty() && stopped_.seconds() >= pause_) start();
}

void Process::start_in(double seconds) {
  stopped_.restart();
  pause_ = seconds;
}

std::vector<uint64_t> Process::stop() {
  if (process_) process_->kill_now();
  process_.reset();
  ++life_;
  outgoing_.clear();
  lines_.cut();
  sent_ = 0;
  given_ = 0;
  return std::exchange(unanswered_, {});
}

void Process::ask(uint64_t id, std::string_view line) {
  if (unanswered_.empty()) {
    if (process_) refuse_unasked();
    quiet_.restart();
  }
  ++given_;
  unanswered_.push_back(id);
  send(line);
}

void Process::tell(std::string_view line) {
  if (process_) send(line);
}

void Process::send(std::string_view line) {
  outgoing_.erase(0, std::exchange(sent_, 0));
  outgoing_ += line;
}

void Process::watch(pollfd* ends) const {
  const bool listens = process_ && !unanswered_.empty();
  const bool sends = process_ && sent_ < outgoing_.size();
  ends[0] = {listens ? process_->output() : -1, POLLIN, 0};
  ends[1] = {sends ? process_->input() : -1, POLLOUT, 0};
}

// A process that answers as it goes would block both pipes if it were not read from while it is
// written to.
void Process::move_on(const pollfd* ends) {
  if (ends[1].revents != 0) sent_ += write_some(std::string_view(outgoing_).substr(sent_));
  if (ends[0].revents != 0) read_some();
}

void Process::check_deadline() const {
  if (!process_ || unanswered_.empty() || quiet_.seconds() < setup_.rules.timeout) return;
  throw ProcessFailure{base::text("no answer within ", base::human_seconds(setup_.rules.timeout),
                                  ", with ", standing(), " requests answered"),
                       last_messages()};
}

// "1 of 3"
std::string Process::standing() const {
  return base::text(given_ - unanswered_.size(), " of ", given_);
}

// Drops the lines that came without a request in flight: an answer among them would be taken for
// one to a request with the same id. If a process never stops writing: the lines in the pipe.
void Process::refuse_unasked() {
  if (setup_.rules.answer_mark.empty()) return;
  int there = 0;
  if (::ioctl(process_->output(), FIONREAD, &there) != 0)
    base::throw_errno(errno, "read from the " + setup_.program.kind, setup_.program.command[0]);
  std::string said = lines_.cut();
  const size_t before = said.size();
  said.resize(before + static_cast<size_t>(there));
  const ssize_t n =
      there == 0 ? 0 : ::read(process_->output(), said.data() + before, static_cast<size_t>(there));
  said.resize(before + static_cast<size_t>(std::max<ssize_t>(n, 0)));
  VALIDATE(said.find(setup_.rules.answer_mark) == std::string::npos, ExitCode::bad_data,
           setup_.program.who(), ": an answer that nobody asked for: ", excerpt(said));
  if (!said.empty()) note(said);
}

size_t Process::write_some(std::string_view text) {
  const ssize_t n = ::write(process_->input(), text.data(), std::min<size_t>(text.size(), 65536));
  if (n >= 0) return static_cast<size_t>(n);
  if (errno == EAGAIN || errno == EINTR) return 0;
  if (errno == EPIPE)
    return text.size();  // it reads no more; its last answers, or its end, come by the other pipe
  base::throw_errno(errno, "write to the " + setup_.program.kind, setup_.program.command[0]);
}

void Process::read_some() {
  char buffer[65536];
  const ssize_t n = ::read(process_->output(), buffer, sizeof buffer);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n < 0)
    base::throw_errno(errno, "read from the " + setup_.program.kind, setup_.program.command[0]);
  if (n == 0) return ended();
  lines_.add(std::string_view(buffer, static_cast<size_t>(n)),
             [this](std::string_view line) { take_line(line); });
  VALIDATE(lines_.begun().size() <= longest_line, ExitCode::bad_data, setup_.program.who(),
           ": a line longer than ", longest_line, " bytes: write one JSON object per line");
}

void Process::take_line(std::string_view line) {
  const auto id = setup_.requests.take(line);
  if (!id) return note(line);
  const auto asked = std::ranges::find(unanswered_, *id);
  VALIDATE(asked != unanswered_.end(), ExitCode::bad_data, setup_.program.who(), ": an answer for ",
           setup_.requests.where(*id),
           " by another process than the one that was asked: processes of a program must not share "
           "their requests");
  unanswered_.erase(asked);
  quiet_.restart();
}

// Its output is closed. All answers may have arrived; otherwise it exited on purpose (code 0) or
// crashed.
void Process::ended() {
  lines_.end([this](std::string_view line) { take_line(line); });
  const Exit exit = process_->wait(1.0);
  if (unanswered_.empty()) {
    stop();
    return;
  }
  VALIDATE(exit.by_signal || exit.code != 0, ExitCode::bad_data, setup_.program.who(),
           ": it ended after ", standing(), " answers (", exit.text(),
           "): answer every request, and read until the end of the input",
           messages_text(last_messages(), setup_.rules));
  throw ProcessFailure{base::text("it ended after ", standing(), " answers (", exit.text(), ")"),
                       last_messages()};
}

void Process::note(std::string_view said) const {
  std::string text;
  Lines lines;
  const auto mark = [&](std::string_view line) { text += base::text(from_stdout, line, "\n"); };
  lines.add(said, mark);
  lines.end(mark);
  base::write_all(setup_.log, text, setup_.log_file);
}

// The log's lines since the start of this process, without those that it wrote on its standard
// output. Processes of one program share the log.
std::vector<std::string> Process::last_messages() const {
  const off_t end = ::lseek(setup_.log, 0, SEEK_END);
  const off_t begin = std::max(log_start_, end - tail_bytes);
  std::string text(static_cast<size_t>(std::max<off_t>(0, end - begin)), '\0');
  const ssize_t n = ::pread(setup_.log, text.data(), text.size(), begin);
  text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  std::vector<std::string> lines;
  Lines cut;
  const auto keep = [&](std::string_view line) {
    if (!line.starts_with(from_stdout)) lines.push_back(printable(line));
  };
  cut.add(text, keep);
  cut.end(keep);
  if (lines.size() > shown_lines) lines.erase(lines.begin(), lines.end() - shown_lines);
  return lines;
}

}  // namespace trireme::plugin
