// Where more groups are written than an iteration learns from (rollout.over_sampling): which of
// them it is, and from when on the others need not be written on. An iteration ends with the
// shortest length of answers at which enough groups, and all that are due, are whole; of those that
// are whole within that length it takes the oldest. So the choice depends on ids and lengths alone,
// not on who writes what, and how fast.
//
// The replicas tell the first generator what they have finished; it tells them the length as soon
// as there is one, and all ranks the choice when every group is either finished or longer.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/comm/mailbox.hpp"
#include "trireme/comm/roles.hpp"
#include "trireme/rollout/generator.hpp"

namespace trireme::rollout {

class EarlyStop {
 public:
  // Collective over world. Keeps a reference.
  EarlyStop(const comm::Roles& roles, const comm::MailLimits& limits);

  struct Round {
    std::vector<uint64_t> groups;  // ascending
    int64_t samples = 1;           // of a group
    int64_t wanted = 0;            // groups
    int64_t due = 0;  // so many of the first are learned from, however long their answers are;
                      // `wanted` at most
  };
  // All that follows is local. The same round on every rank, before any generator begins to write
  // it.
  void begin(const Round& round);

  // On the first rank of a replica: a sequence of its is finished. Gives the sequences of its group
  // when that is whole, else none.
  Samples finished(const Samples& sequence);
  // One of its groups was left, since an answer is longer than longest().
  void left(uint64_t group);
  // Answers of more tokens are not wanted; any_length while that is not known.
  int64_t longest() const { return longest_; }

  struct Chosen {
    std::vector<uint64_t> groups;   // ascending
    std::vector<uint64_t> surplus;  // finished and not chosen, ascending
    bool stopped = false;           // the run stops before the choice
    static constexpr auto fields = std::tuple{&Chosen::groups, &Chosen::surplus, &Chosen::stopped};
  };
  // Whether the choice is known; asked by every rank until it is. `stop`: no more waiting, where it
  // is the first generator's.
  bool poll(bool stop);
  // What poll() gave; the round is over.
  Chosen take();
  // Tokens that this replica has written in the rounds since the last call and that nobody learns
  // from, but those of unfinished answers.
  int64_t take_dropped() { return std::exchange(dropped_, 0); }
  // Takes what has come.
  void receive();
  bool quiet() const { return mail_.quiet(); }

 private:
  // To the first generator: a group is finished, with the tokens of its longest answer, or left.
  // From it: the longest answers to write, or the choice.
  enum class Kind : int32_t { finished, left, longest, choice };
  struct Message {
    Kind kind = Kind::choice;
    uint64_t group = 0;
    int64_t tokens = 0;
    Chosen chosen = {};
    static constexpr auto fields =
        std::tuple{&Message::kind, &Message::group, &Message::tokens, &Message::chosen};
  };
  int first() const { return roles_.map.generator.front(); }
  bool decides() const { return roles_.world.rank() == first(); }
  void receive(const Message& message);
  void shorten();
  void decide(bool stop);

  const comm::Roles& roles_;
  comm::Mailbox<Message> mail_;
  Round round_;
  int64_t longest_ = any_length;
  std::map<uint64_t, Samples> parts_;    // of this replica's groups that are not whole
  std::map<uint64_t, int64_t> written_;  // tokens of this replica's groups that are
  int64_t dropped_ = 0;
  // On the first generator
  std::map<uint64_t, int64_t> finished_;  // groups and their longest answers
  int64_t left_ = 0;                      // groups
  bool news_ = false;                     // of finished ones
  bool decided_ = false;
  std::deque<Chosen> chosen_;
};

// `samples` without those of these groups, which are ascending.
Samples without(const std::vector<uint64_t>& groups, const Samples& samples);

}  // namespace trireme::rollout
