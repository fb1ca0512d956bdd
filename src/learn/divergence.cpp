#include "trireme/learn/divergence.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

namespace trireme::learn {

std::string Divergence::complaint(const Signs& now) const {
  std::vector<std::string> words;
  const auto [kl, entropy, reward] = now;
  if (limits_.kl && kl > *limits_.kl)
    words.push_back(base::text("kl is ", kl, ", above train.divergence.kl = ", *limits_.kl));
  if (limits_.entropy && entropy < *limits_.entropy) {
    words.push_back(base::text("entropy is ", entropy,
                               ", below train.divergence.entropy = ", *limits_.entropy));
  }
  if (limits_.reward_drop && seen_ && reward < best_reward_ - *limits_.reward_drop) {
    words.push_back(base::text("reward is ", reward, ", more than train.divergence.reward_drop = ",
                               *limits_.reward_drop, " below the best, ", best_reward_));
  }
  return base::join(words, "; ");
}

void Divergence::look_at(const Signs& now) {
  const std::string words = complaint(now);
  in_a_row_ = words.empty() ? 0 : in_a_row_ + 1;
  if (std::isfinite(now.reward)) {
    best_reward_ = seen_ ? std::max(best_reward_, now.reward) : now.reward;
    seen_ = true;
  }
  VALIDATE(in_a_row_ < limits_.patience || words.empty(), ExitCode::internal,
           "the run diverges: ", words, ", after ", in_a_row_,
           " such iterations in a row (train.divergence.patience): go back to an earlier "
           "checkpoint (ckpt.resume, `best`) with a lower learning rate or a ",
           "higher KL coefficient");
}

}  // namespace trireme::learn
