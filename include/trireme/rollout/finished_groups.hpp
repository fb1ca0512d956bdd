// Which groups an iteration learns from where it takes those that are finished first
// (train.partial_rollout_order): the replicas tell the first generator what they have finished, and
// it tells all ranks as soon as there is enough. The others stay under way.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "trireme/comm/mailbox.hpp"
#include "trireme/comm/roles.hpp"

namespace trireme::rollout {

class FinishedGroups {
 public:
  // `wanted` groups an iteration. Collective over world. Keeps a reference.
  FinishedGroups(const comm::Roles& roles, const comm::MailLimits& limits, int64_t wanted);

  // All that follows is local. A group that this rank's replica writes, so many sequences of it;
  // one of these is finished. On its first rank.
  void expect(uint64_t group, int64_t sequences) { unfinished_[group] = sequences; }
  void finished(uint64_t group);
  // A group that was finished when the checkpoint was made.
  void found(uint64_t group);

  struct Chosen {
    std::vector<uint64_t> groups;  // ascending
    bool left = false;             // the run stops before there were enough
    static constexpr auto fields = std::tuple{&Chosen::groups, &Chosen::left};
  };
  // Whether the iteration's groups are known; asked by every rank until they are. `stop`: no more
  // waiting, where it is the first generator's.
  bool poll(bool stop);
  // The iteration has them: what poll() gave.
  Chosen take();
  // Takes what has come.
  void receive();
  bool quiet() const { return mail_.quiet(); }

 private:
  struct Message {
    bool choice = false;  // from the first generator to all; else to it: groups that are finished
    Chosen chosen;
    static constexpr auto fields = std::tuple{&Message::choice, &Message::chosen};
  };
  bool decides() const { return roles_.world.rank() == roles_.map.generator.front(); }
  void decide(bool stop);

  const comm::Roles& roles_;
  size_t wanted_;
  comm::Mailbox<Message> mail_;
  std::unordered_map<uint64_t, int64_t> unfinished_;  // sequences of this replica's groups
  std::set<uint64_t> finished_;                       // on the first generator
  bool decided_ = false;
  std::deque<Chosen>
      chosen_;  // a rank may be behind: the next iteration's does not take the place of its own
};

}  // namespace trireme::rollout
