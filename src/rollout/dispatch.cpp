#include "trireme/rollout/dispatch.hpp"

#include <algorithm>
#include <map>

#include "trireme/base/error.hpp"
#include "trireme/base/wire.hpp"

namespace trireme::rollout {

void Dispatch::finished(int64_t row, int64_t tokens) { news_.emplace_back(row, tokens); }

void Dispatch::learn_lengths() {
  std::map<int64_t, std::pair<int64_t, int64_t>> of_row;  // answers, tokens
  for (const auto& [row, tokens] : news_) {
    auto& sum = of_row[row];
    ++sum.first;
    sum.second += tokens;
  }
  news_.clear();
  struct Answers {
    int64_t row, answers, tokens;
  };
  std::vector<Answers> mine;
  for (const auto& [row, sum] : of_row) mine.push_back({row, sum.first, sum.second});
  for (const Answers& one : roles_.generators.all().all_gather<Answers>(mine))
    lengths_.add(one.row, one.answers, one.tokens);
}

Dispatch::Share Dispatch::share(const std::vector<PromptTask>& tasks, int64_t outstanding) {
  learn_lengths();
  std::vector<int64_t> loads(static_cast<size_t>(roles_.replicas()), 0);
  const std::pair<int64_t, int64_t> mine{roles_.generators.place(comm::Axis::data), outstanding};
  for (const auto& [replica, tokens] : roles_.generators.all().gather_values(mine))
    loads[static_cast<size_t>(replica)] = tokens;

  std::vector<generate::PromptWork> work;
  work.reserve(tasks.size());
  for (const PromptTask& task : tasks) {
    const int64_t expected =
        task.row == PromptTask::other_set ? lengths_.expected() : lengths_.expected(task.row);
    const auto recorded = recorded_.find(task.group);
    work.push_back({.prompt = task.prompt,
                    .answers = std::max(task.answers, task.answers * expected - task.written),
                    .replica = recorded == recorded_.end() ? generate::PromptWork::anywhere
                                                           : recorded->second});
  }
  const generate::Assignment assignment = generate::assign(work, loads);
  Share share;
  for (size_t t = 0; t < tasks.size(); ++t)
    share.all.emplace_back(tasks[t].group, assignment.replica[t]);
  for (const size_t t : assignment.order) {
    if (assignment.replica[t] == roles_.generators.place(comm::Axis::data)) share.mine.push_back(t);
  }
  return share;
}

std::vector<uint64_t> Dispatch::queue() const {
  std::vector<uint64_t> mine;
  for (const Queued& one : queued_) {
    if (one.replica == roles_.generators.place(comm::Axis::data)) mine.push_back(one.id);
  }
  return mine;
}

std::string Dispatch::stored(GroupsOfReplicas open, const std::vector<uint64_t>& queue) {
  if (!roles_.generator) return {};
  learn_lengths();
  std::vector<Queued> mine;
  for (const uint64_t id : queue) mine.push_back({roles_.generators.place(comm::Axis::data), id});
  std::vector<Queued> queues = roles_.generators.all().all_gather<Queued>(mine);
  queues.insert(queues.end(), queued_.begin(), queued_.end());
  if (roles_.world.rank() != roles_.map.generator.front()) return {};
  open.insert(open.end(), recorded_.begin(),
              recorded_.end());  // of batches that are not open again yet
  std::ranges::sort(open);
  return base::WireWriter()
      .put(Stored{roles_.replicas(), std::move(open), lengths_.to_bytes()})
      .put(queues)
      .take();
}

void Dispatch::restore(const std::string& bytes) {
  const std::string all = roles_.world.broadcast(bytes, 0);
  base::WireReader reader(all, "the dispatch of the checkpoint");
  const auto stored = reader.take<Stored>();
  const auto queues = reader.done()
                          ? std::vector<Queued>()
                          : reader.take<std::vector<Queued>>();  // older checkpoints have none
  reader.must_be_done();
  for (const auto& [group, replica] :
       stored.open) {  // on every rank: one that goes on would wait for the others
    VALIDATE(replica >= 0 && replica < stored.replicas, ExitCode::bad_data,
             "the dispatch of the checkpoint names replica ", replica, " of ", stored.replicas);
  }
  lengths_ = generate::AnswerLengths::from_bytes(stored.lengths);
  forget_writers();
  if (!roles_.generator || stored.replicas != roles_.replicas()) return;
  recorded_.insert(stored.open.begin(), stored.open.end());
  queued_ = queues;
}

}  // namespace trireme::rollout
