// Which groups of answers a run has, and which of them an iteration learns from. A group is all
// answers to one prompt:
//
//   drawn -> writing -> written -> chosen -> scored -> taken, or dropped
//
// Its prompt was drawn; a replica writes it; all its answers are whole; it is scored next; its
// rewards are known; an iteration learns from it. Ids ascend with age, and a taken or dropped group
// leaves the buffer.
//
// No MPI, no tensors, no clock. Every rank has a buffer and makes the same calls, except for
// written() and left(): replicas tell these to one rank, which then decides for all (GroupNews).
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "trireme/config/options.hpp"

namespace trireme::rollout {

// Which groups are scored next.
enum class Order {
  drawn,     // the oldest draw; known without a message
  finished,  // the oldest of those that are written, as soon as there are enough
  shortest,  // those whose longest answer is short; the rest begins again in the next iteration
};

struct GroupPolicy {
  Order order = Order::drawn;
  int64_t iterations = std::numeric_limits<int64_t>::max();  // of the run
  int64_t wanted = 1;                                        // groups that an iteration learns from
  int64_t ahead = 0;    // iterations beyond the current one whose groups are drawn with its own
  int64_t surplus = 0;  // groups that are written beyond those of the window
  // Dynamic filtering: some scored groups are dropped, so more are drawn than are wanted.
  bool filters = false;
  bool draws_overlap = false;  // the next draw may begin before the last one is scored
  int64_t patience = 64;       // draws of `wanted` prompts after which a shortage is reported
  config::FilteringShortage shortage = config::FilteringShortage::draw_on;
};
// `iterations`: of the run.
GroupPolicy policy_of(const config::Options& options, int64_t iterations);

// Counts of dynamic filtering in this iteration.
struct FilterState {
  double share_before = 1;  // kept share of the prompts that were scored in earlier iterations
  int64_t drawn = 0;        // prompts
  int64_t draws = 0;
  int64_t seen = 0;         // prompts that were scored
  int64_t informative = 0;  // of these: kept
  int64_t complaints = 0;
  bool operator==(const FilterState&) const = default;
};

// A prompt whose answers begin again.
struct CarriedPrompt {
  uint64_t group = 0;
  int64_t row = 0;  // of the prompt set
  bool operator==(const CarriedPrompt&) const = default;
};

constexpr int64_t any_length = std::numeric_limits<int64_t>::max();

class GroupBuffer {
 public:
  explicit GroupBuffer(const GroupPolicy& policy) : policy_(policy) {}
  const GroupPolicy& policy() const { return policy_; }

  // Prompts to draw now for `iteration`; 0: none. `warning` is not empty where dynamic filtering
  // finds too little; throws UserError(bad_data) where the run must not go on with that.
  struct Wish {
    int64_t prompts = 0;
    std::string warning = {};
  };
  Wish to_draw(int64_t iteration);
  // Prompts that were drawn: gives them ids.
  void admit(int64_t iteration, std::span<const int64_t> rows);
  // Begins all groups that are drawn, as the draw of this number. Ascending; empty: none.
  struct Draw {
    int64_t iteration = 0;  // that it is meant for
    std::vector<uint64_t> groups;
    std::vector<int64_t> rows;
  };
  Draw start(int64_t number, int64_t iteration);

  // On the rank that decides: a group is whole, its longest answer has so many tokens; or it was
  // left, since an answer has more than longest() tokens.
  void written(uint64_t group, int64_t tokens);
  void left(uint64_t group);
  // Answers of more tokens are not wanted any more (Order::shortest); it never grows within an
  // iteration.
  int64_t longest() const { return longest_; }

  // The groups to score next, ascending.
  struct Choice {
    std::vector<uint64_t> groups;
    std::vector<uint64_t> surplus;  // written, and begun again all the same
    bool stopped = false;           // the run stops before the choice
    static constexpr auto fields = std::tuple{&Choice::groups, &Choice::surplus, &Choice::stopped};
  };
  // Whether every rank can choose by itself: nothing has to be written for that.
  bool choice_is_known() const;
  // nullopt: too few groups are written.
  std::optional<Choice> choose() const;
  void apply(const Choice& choice);
  // The chosen groups were scored; `kept`, in the order in which they are to be learned from, are
  // worth it, the others are dropped.
  void scored(std::span<const uint64_t> kept);

  // Whether the iteration has what it learns from.
  bool ready() const;
  struct Taken {
    std::vector<uint64_t> groups;  // ascending
    int64_t drawn = 0;             // prompts in this iteration (filters)
    int64_t skipped = 0;           // of the prompts that were scored: dropped
    int64_t rest = 0;              // scored groups that the next iteration begins with
  };
  // The oldest of the scored groups. The next iteration begins.
  Taken take();

  // Groups that `iteration` could have learned from, and that the next one may.
  int64_t carried(int64_t iteration) const;
  // A checkpoint stores the groups that are drawn and not begun, what filtering has counted, and by
  // their samples the others.
  std::vector<CarriedPrompt> waiting() const;
  const FilterState& filter() const { return filter_; }
  void restore(const std::vector<CarriedPrompt>& waiting, const FilterState& filter);
  // A draw whose samples a checkpoint has; the groups `unfinished`, ascending, are not whole.
  void restore_draw(int64_t number, int64_t iteration, std::span<const uint64_t> groups,
                    std::span<const uint64_t> unfinished);
  // Groups that the checkpoint has scored, in the order in which they are to be learned from.
  void restore_scored(std::vector<uint64_t> groups) { scored_ = std::move(groups); }

 private:
  enum class State { drawn, writing, written, left, chosen };
  struct Group {
    State state = State::drawn;
    int64_t row = 0;
    int64_t draw = 0;
    int64_t iteration = 0;  // that its draw was meant for
    int64_t tokens = 0;     // of its longest answer, where that is known
  };
  int64_t count(State state) const;
  int64_t missing() const;
  bool makes_do() const;
  double kept_share() const;
  std::string shortage() const;
  int64_t next_ordinal() const;  // of the next prompt in this iteration (filters)
  int64_t draws() const;         // under way
  void shorten();

  GroupPolicy policy_;
  std::map<uint64_t, Group> groups_;  // that are not scored
  std::vector<uint64_t> scored_;      // in the order in which they are learned from
  FilterState filter_;
  std::optional<uint64_t> last_;  // the youngest group that there was
  int64_t iteration_ = 0;         // of the last start()
  int64_t longest_ = any_length;
};

}  // namespace trireme::rollout
