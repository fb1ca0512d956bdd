#include "trireme/rollout/replica_turns.hpp"

namespace trireme::rollout {

ReplicaTurns::ReplicaTurns(const comm::Roles& roles) : leads_(roles.leads_replica()) {
  if (!roles.generator || roles.tensor_parallel() == 1) return;
  others_ = roles.tensor_parallel() - 1;
  mail_.emplace(roles.generators.along(comm::Axis::tensor), "turns of a replica", comm::MailLimits{});
}

void ReplicaTurns::announce() {
  if (announced_) return;
  mail_->post(0, Turn::here);
  announced_ = true;
}

// Nobody waits in a step for a rank that is still at something else, which may need what this one has: hence the announcements.
bool ReplicaTurns::next(bool wanted) {
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

void ReplicaTurns::settle(const std::function<void()>& step) {
  if (others_ == 0) return;
  if (leads_) {
    comm::wait_until("the ranks of the replica", [this] {
      next(false);
      return here_ == others_;
    });
    for (int rank = 1; rank <= others_; ++rank) mail_->post(rank, Turn::end);
    here_ = 0;
    return;
  }
  comm::wait_until("the first rank of the replica", [&] {
    while (next(false)) step();
    return ended_;
  });
  announced_ = ended_ = false;
}

}  // namespace trireme::rollout
