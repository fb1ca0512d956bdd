// The walltime rule: a run stops by itself while there is time for a checkpoint, since schedulers
// differ in whether, how early and how often they warn.
//
//   stop when   what remains  <  1.3 x longest iteration + 1.5 x longest save + 1.3 x longest
//   closing + margin
//
// An iteration counts with its evaluation. A save that runs in the background has to end before the
// last one begins: it counts once more. As long as no save was measured an iteration's time stands
// in for it, and the first one is made early (wants_measurement).
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

namespace trireme::job {

// Seconds since this process was started, the time before main included.
double process_age();

// Seconds for leaving MPI and the launcher: a tenth of what is left, at least 5 and at most 30
// seconds, and the time that the start took (at most 60 seconds): a job that starts slowly ends
// slowly.
double leaving_margin(double seconds_left, double start_seconds);

// The next iteration's needs.
struct NextIteration {
  bool evaluates = false;
  bool save_in_progress = false;
};

class Walltime {
 public:
  // `seconds_left` from now; nullopt: no limit known. The margin is that of a start that took no
  // time.
  explicit Walltime(std::optional<double> seconds_left);
  Walltime(double seconds_left, double margin_seconds);

  // One iteration took so long, `evaluation_seconds` of it for an evaluation.
  void phase_took(double seconds, double evaluation_seconds = 0);
  // A checkpoint took so long, from its start to the commit.
  void save_took(double seconds);
  // What comes after the last save took so long: exports, trace, tables.
  void closing_took(double seconds);

  // The last moment, on the monotonic clock, at which a run may be asked to stop that can be left
  // every `stretch` seconds; nullopt: no limit.
  std::optional<double> latest_stop(double stretch, bool save_in_progress) const;
  bool must_stop(const NextIteration& next = {}) const;
  std::optional<double> remaining() const;
  // Seconds that the next iteration and leaving are reckoned to need.
  double needed(const NextIteration& next = {}) const;
  // Seconds of a save, as far as known: the longest of the last four.
  std::optional<double> save_seconds() const;
  // Seconds of the longest iteration so far, without its evaluation.
  double longest_phase() const { return longest_plain_; }
  // Whether a checkpoint should be made now only to learn how long one takes: there is a limit,
  // none was measured, and the next regular one, `iterations_until_save` from now, lies in the
  // second half of what remains.
  bool wants_measurement(double iterations_until_save) const;

 private:
  double evaluation(bool evaluates) const;

  std::optional<double> deadline_;  // on the monotonic clock
  double margin_ = 0;
  double longest_plain_ = 0;  // an iteration without its evaluation
  double longest_evaluation_ = 0;
  double longest_closing_ = 0;
  std::array<double, 4> saves_{};
  size_t saves_seen_ = 0;
};

// The limit that counts: `deck_seconds` from the process's start (0: none), or the scheduler's when
// that is nearer.
struct WalltimeLimit {
  std::optional<double> seconds_left;
  std::string source;  // "run.walltime", "the scheduler"; "" when there is no limit
};
WalltimeLimit choose_limit(double deck_seconds, double age,
                           std::optional<double> scheduler_seconds_left);

}  // namespace trireme::job
