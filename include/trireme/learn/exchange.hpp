// Moves samples between ranks: packed, never padded, the same way whether the roles share ranks or
// not. Among the ranks of a role by collectives of theirs (Exchange), from role to role by
// mailboxes (Delivery).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/comm/mailbox.hpp"

namespace trireme::learn {

// Facts about every sequence of the rollout that all ranks of a role know; in id order.
struct ListedSequence {
  uint64_t id = 0;
  int64_t tokens = 0;
};
using SequenceList = std::vector<ListedSequence>;
std::vector<int64_t> lengths_of(const SequenceList& sequences);
// The rank of `targets` that gets each sequence, token counts near even; the same on every rank,
// without a message. For many thousand sequences and ranks: O(sequences) memory.
std::vector<int> spread_over(const SequenceList& sequences, const std::vector<int>& targets);

// A scored rollout as the trainers have it.
struct Rollout {
  Samples samples;         // this rank's, in id order
  SequenceList sequences;  // of all sequences
  std::vector<int> owner;  // trainer of each of them
};

struct MoveCounters {
  int64_t sequences_sent = 0;  // to another rank
  int64_t bytes_sent = 0;
  int64_t messages = 0;
};

// A rank's share of samples that all ranks work on.
struct SharedOut {
  Samples share;
  SequenceList sequences;  // of all ranks
  std::vector<int> home;   // the rank that each of them came from
};

class Exchange {
 public:
  explicit Exchange(const comm::CommView& ranks) : ranks_(ranks) {}

  // Collective: the sequences of all ranks, in id order.
  SequenceList list(const Samples& mine) const;
  // Collective: sequence i of `sequences` goes to rank rank_of[i]; returns this rank's, in id
  // order.
  Samples move(const Samples& mine, const SequenceList& sequences, const std::vector<int>& rank_of);
  // list() and move() to the ranks `targets`, as spread_over() says.
  Samples spread(const Samples& mine, const std::vector<int>& targets);
  // Collective: all ranks get a share of the sequences, token counts near even, to fill in columns.
  // give_back() brings each sequence to the rank that had it. In id order.
  SharedOut share_out(const Samples& mine);
  Samples give_back(const SharedOut& shared);

  const MoveCounters& counters() const { return counters_; }

 private:
  comm::CommView ranks_;
  MoveCounters counters_;
};

// A rollout from the ranks that hold it to those that learn from it, point to point.
class Delivery {
 public:
  // Collective over `world`, which has the `receivers`.
  Delivery(const comm::CommView& world, std::vector<int> receivers, const comm::MailLimits& limits);

  // By each of the ranks that hold the rollout, this one being number `holder` of `holders`:
  // sequence i of `sequences`, which they all have, goes to receiver owner[i]. Local; progress()
  // until sent() says so.
  void send(const Samples& mine, const SequenceList& sequences, const std::vector<int>& owner,
            int holder, int holders);
  bool sent() const { return mail_.quiet(); }
  void progress() { mail_.progress(); }
  // Takes what has come for receiver number `receiver`. True when all of it is here: its sequences
  // in id order, and the list of all of them. Local.
  bool receive(Rollout& rollout, int receiver,
               const std::function<std::vector<int>(const SequenceList&)>& owners);

 private:
  struct Parcel {
    SequenceList sequences;  // from one of the holders only
    Samples samples;
    static constexpr auto fields = std::tuple{&Parcel::sequences, &Parcel::samples};
  };

  std::vector<int> receivers_;
  comm::Mailbox<Parcel> mail_;
};

// A rank's part of a waiting rollout as a checkpoint stores it, empty where it has none; the parts
// of all ranks, one behind the other: those that have their scores apart. Throws
// UserError(bad_data) where they are cut short.
std::string to_stored(const Samples& samples);
struct StoredSamples {
  Samples scored, others;
};
StoredSamples from_stored(std::string_view parts);

}  // namespace trireme::learn
