#include "trireme/rollout/turns.hpp"

namespace trireme::rollout {

Turns::Turns(const comm::CommView& ranks, const std::string& name)
    : leads_(ranks.rank() == 0), others_(ranks.size() - 1) {
  if (others_ > 0) mail_.emplace(ranks, name, comm::MailLimits{});
}

void Turns::announce() {
  if (announced_) return;
  mail_->post(0, Turn::here);
  announced_ = true;
}

// Nobody waits in a step for a rank that is still at something else, which may need what this one
// has: hence the announcements.
bool Turns::next(bool wanted) {
  if (others_ == 0) return wanted;
  if (leads_) {
    while (mail_->take()) ++here_;
    if (!wanted || here_ < others_) return false;
    for (int rank = 1; rank <= others_; ++rank) mail_->post(rank, Turn::step);
    return true;
  }
  announce();
  const auto turn = ended_ ? std::nullopt : mail_->take();
  ended_ = ended_ || turn == Turn::end;
  return turn == Turn::step;
}

void Turns::settle(const std::function<void()>& step) {
  if (others_ == 0) return;
  if (leads_) {
    comm::wait_until("those that take turns", [this] {
      next(false);
      return here_ == others_;
    });
    for (int rank = 1; rank <= others_; ++rank) mail_->post(rank, Turn::end);
    here_ = 0;
    return;
  }
  comm::wait_until("the first of those that take turns", [&] {
    while (next(false)) step();
    return ended_;
  });
  announced_ = ended_ = false;
}

}  // namespace trireme::rollout
