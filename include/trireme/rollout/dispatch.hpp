// Hands the prompts of a batch out to the replicas, by what each of them has to write already and
// by how long answers were. Generators agree on that by one collective of theirs a batch; the other
// ranks have no part in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/comm/roles.hpp"
#include "trireme/generate/dispatch.hpp"

namespace trireme::rollout {

// The samples of one prompt, as far as they are to be written.
struct PromptTask {
  static constexpr int64_t other_set = -1;  // row of a prompt that is not trained on

  uint64_t group = 0;   // group_of
  int64_t row = 0;      // of the training prompts
  int64_t prompt = 0;   // tokens
  int64_t answers = 1;  // that are not finished
  int64_t written = 0;  // tokens of theirs
};

// Who writes a group.
using GroupsOfReplicas = std::vector<std::pair<uint64_t, int32_t>>;

class Dispatch {
 public:
  // Keeps a reference.
  explicit Dispatch(const comm::Roles& roles) : roles_(roles) {}

  // A training answer, on the first rank of its replica.
  void finished(int64_t row, int64_t tokens);

  struct Share {
    std::vector<size_t> mine;  // tasks of this rank's replica, in the order in which it begins them
    GroupsOfReplicas all;      // of all tasks
  };
  // Groups that a checkpoint says who writes stay there while the number of replicas is what it
  // was. `outstanding`: tokens that this rank's replica has to write already. Collective over the
  // generators, which give the same tasks.
  Share share(const std::vector<PromptTask>& tasks, int64_t outstanding);
  // Counts the answers that the replicas have finished since the last time; share() and stored() do
  // it as well. Collective over the generators.
  void learn_lengths();
  const generate::AnswerLengths& lengths() const { return lengths_; }

  // For a checkpoint: who writes what of the open batches, in which order, and how long answers
  // were. `queue`: unwritten requests of this rank's replica, on its first rank. On the first
  // generator; nothing on others. Collective over the generators.
  std::string stored(GroupsOfReplicas open, const std::vector<uint64_t>& queue);
  // What rank 0 has of it. Collective over world.
  void restore(const std::string& bytes);
  // Unwritten requests of this rank's replica then, in its order; empty where there are other
  // replicas now.
  std::vector<uint64_t> queue() const;
  // The checkpoint's batches are open again.
  void forget_writers() {
    recorded_.clear();
    queued_.clear();
  }

 private:
  struct Stored {
    int64_t replicas = 0;
    GroupsOfReplicas open;
    std::string lengths;
    static constexpr auto fields = std::tuple{&Stored::replicas, &Stored::open, &Stored::lengths};
  };
  struct Queued {
    int64_t replica;
    uint64_t id;
  };

  const comm::Roles& roles_;
  generate::AnswerLengths lengths_;
  std::vector<std::pair<int64_t, int64_t>> news_;   // rows and tokens of this replica's answers
  std::unordered_map<uint64_t, int32_t> recorded_;  // from a checkpoint
  std::vector<Queued> queued_;                      // from a checkpoint: of all replicas
};

}  // namespace trireme::rollout
