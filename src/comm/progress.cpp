#include "trireme/comm/progress.hpp"

#include <optional>
#include <utility>

#include "comm/sleep_until.hpp"
#include "trireme/comm/mailbox.hpp"
#include "trireme/trace/activity.hpp"

namespace trireme::comm {
namespace {

constexpr job::StopReason no_reason_to_leave = job::StopReason::save_and_go_on;

}  // namespace

// The first rank begins a step when all others have said that they wait: none of them may be at
// something else, which could need what another rank has.
class Progress::Joint {
 public:
  Joint(const CommView& ranks, const std::string& name, std::function<bool()> wanted,
        std::function<void()> step)
      : leads_(ranks.rank() == 0),
        others_(ranks.size() - 1),
        wanted_(std::move(wanted)),
        step_(std::move(step)) {
    if (others_ > 0) mail_.emplace(ranks, name, MailLimits{});
  }

  // Any number of times while this rank waits; whether it took a step.
  bool help() {
    if (!(leads_ ? begins() : joins())) return false;
    step_();
    return true;
  }

  // After a wait, before this rank does anything else: the steps that the first rank has begun.
  // Collective over the ranks.
  void settle() {
    if (others_ == 0) return;
    if (leads_) {
      wait_until("those that work together",
                 [this] { return count_those_here(), here_ == others_; });
      for (int rank = 1; rank <= others_; ++rank) mail_->post(rank, Turn::end);
      here_ = 0;
      return;
    }
    wait_until("the first of those that work together", [this] {
      while (joins()) step_();
      return ended_;
    });
    announced_ = ended_ = false;
  }

 private:
  enum class Turn : int32_t { here, step, end };

  void count_those_here() {
    while (mail_->take()) ++here_;
  }
  bool begins() {
    if (others_ > 0) count_those_here();
    if (here_ < others_ || !wanted_()) return false;
    for (int rank = 1; rank <= others_; ++rank) mail_->post(rank, Turn::step);
    return true;
  }
  bool joins() {
    if (!announced_) mail_->post(0, Turn::here);
    announced_ = true;
    const auto turn = ended_ ? std::nullopt : mail_->take();
    ended_ = ended_ || turn == Turn::end;
    return turn == Turn::step;
  }

  bool leads_;
  int others_;  // ranks beside this one
  std::function<bool()> wanted_;
  std::function<void()> step_;
  std::optional<Mailbox<Turn>> mail_;
  int here_ = 0;            // on the first rank: the others that wait
  bool announced_ = false;  // on the others
  bool ended_ = false;
};

Progress::Progress(LeaveWatch* watch) : watch_(watch) {}
Progress::~Progress() = default;

void Progress::add(Work work) { own_.push_back(std::move(work)); }

void Progress::add_joint(const CommView& ranks, const std::string& name,
                         std::function<bool()> wanted, std::function<void()> step) {
  joint_.push_back(std::make_unique<Joint>(ranks, name, std::move(wanted), std::move(step)));
}

int64_t Progress::work() {
  int64_t came = 0;
  for (const Work& source : own_) came += source();
  return came;
}

bool Progress::work(Help help) {
  bool more = work() > 0;
  if (help == Help::own) return more;
  for (const auto& joint : joint_) more = joint->help() || more;
  return more;
}

void Progress::settle(Help help) {
  if (help == Help::joint) {
    for (const auto& joint : joint_) joint->settle();
  }
  if (watch_) watch_->waited();
}

Then Progress::heard() {
  return watch_ && watch_->wish() > no_reason_to_leave ? Then::leave : Then::go_on;
}

Then Progress::some(May may) {
  work();
  return may == May::leave ? heard() : Then::go_on;
}

Then Progress::some(trace::Name received) {
  trace::count(received, work());
  return Then::go_on;
}

Then Progress::until(const char* what, const std::function<bool()>& done, May may, Help help) {
  heard();
  Then then = Then::go_on;
  const auto over = [&] {
    if (done()) return true;
    if (may == May::leave) then = heard();
    return then == Then::leave;
  };
  work();
  if (!over()) {
    const trace::Collective collective{what, "its mailbox", 0};
    const trace::Region region{"wait for other ranks", trace::no_argument, trace::Category::wait};
    sleep_until(over, [&] { return work(help); });
  }
  settle(help);
  return then;
}

void Progress::meet(const CommView& ranks, Help help) {
  heard();
  ranks.sleeping_barrier([&] { return work(help); });
  settle(help);
}

Then Progress::agree(const CommView& ranks) {
  if (!watch_ || !watch_->leaves_inside()) return Then::go_on;
  reason_ = static_cast<job::StopReason>(ranks.max(static_cast<int32_t>(watch_->wish())));
  if (reason_ > no_reason_to_leave) return Then::leave;
  reason_ = job::StopReason::none;
  return Then::go_on;
}

Then Progress::any(const CommView& ranks, Then mine) {
  if (ranks.all(mine == Then::go_on)) return Then::go_on;
  reason_ = static_cast<job::StopReason>(ranks.max(static_cast<int32_t>(reason_)));
  return Then::leave;
}

Then Pass::next(trace::Name received) const {
  if (!progress) return Then::go_on;
  progress->some(received);
  if (may == May::stay || progress->agree(ranks) == Then::go_on) return Then::go_on;
  trace::count("passes_left", 1);
  return Then::leave;
}

}  // namespace trireme::comm
