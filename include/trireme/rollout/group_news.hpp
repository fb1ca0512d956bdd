// Brings what the replicas have written to the first generator, which chooses the groups that an
// iteration learns from, and the choice to all ranks. For orders that depend on what is written
// (GroupBuffer::choice_is_known()).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "trireme/base/samples.hpp"
#include "trireme/comm/mailbox.hpp"
#include "trireme/comm/roles.hpp"
#include "trireme/rollout/group_buffer.hpp"

namespace trireme::rollout {

class GroupNews {
 public:
  // Keeps references. Collective over world.
  GroupNews(const comm::Roles& roles, const comm::MailLimits& limits, GroupBuffer& buffer)
      : roles_(roles), buffer_(buffer), mail_(roles.world, "groups", limits) {}

  // All that follows is local. On the first rank of a replica: it writes so many answers of a
  // group.
  void expect(uint64_t group, int64_t answers) { writing_[group] = {.missing = answers}; }
  // One of them is finished. Gives what can be scored now: where a group may still be left, all of
  // its answers when it is whole.
  Samples finished(const Samples& sequence);
  // The group was left, since an answer is longer than longest().
  void left(uint64_t group);
  // Answers of more tokens are not wanted, as far as this rank has heard.
  int64_t longest() const { return longest_; }

  // Whether the choice is known; asked by every rank until it is. `stop`: the run stops, if this
  // rank decides and cannot choose yet.
  bool poll(bool stop);
  // The choice that poll() found.
  GroupBuffer::Choice take();
  // Tokens of whole groups that this replica has written since the last call and that are begun
  // again, and of whole answers of groups that it has left.
  int64_t take_dropped() { return std::exchange(dropped_, 0); }
  // Takes what has come.
  void receive();
  bool quiet() const { return mail_.quiet(); }

 private:
  // To the first generator: a group is written, with the tokens of its longest answer, or left.
  // From it: how long answers may be, or the choice.
  enum class Kind : int32_t { written, left, longest, choice };
  struct Message {
    Kind kind = Kind::choice;
    uint64_t group = 0;
    int64_t tokens = 0;
    GroupBuffer::Choice choice = {};
    static constexpr auto fields =
        std::tuple{&Message::kind, &Message::group, &Message::tokens, &Message::choice};
  };
  struct Writing {
    int64_t missing = 0;  // answers
    int64_t longest = 0;  // tokens of the longest finished one
    int64_t tokens = 0;   // of all finished ones
    Samples held = {};    // finished ones that wait for the others
  };
  bool decides() const { return roles_.world.rank() == roles_.map.generator.front(); }
  void receive(const Message& message);
  void decide(bool stop);

  const comm::Roles& roles_;
  GroupBuffer& buffer_;
  comm::Mailbox<Message> mail_;
  std::map<uint64_t, Writing> writing_;  // this replica's groups
  int64_t longest_ = any_length;
  int64_t dropped_ = 0;
  // On the first generator
  bool decided_ = false;
  int64_t told_ = any_length;                // longest() that all generators know
  std::deque<GroupBuffer::Choice> choices_;  // a slow rank may have two
};

}  // namespace trireme::rollout
