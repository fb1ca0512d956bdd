// How many slot-steps carry a token, by the order in which groups are learned from: a simulation of
// many replicas, which agrees with real engines. Lengths are log-normal, or those of public traces.
// Learning takes no time here: generation is all that there is to wait for.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <map>
#include <numbers>
#include <numeric>
#include <set>
#include <utility>

#include "support/world.hpp"
#include "tiny_model.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/generate/dispatch.hpp"

namespace trireme::test {
namespace {

enum class Order { drawn, finished };

// Lengths of answers in a trace: the smallest that a share of them does not exceed.
struct Published {
  const char* name;
  double mean;
  std::array<std::pair<double, double>, 16> quantiles;

  double length(double share) const {
    const auto above =
        std::ranges::find_if(quantiles, [&](const auto& one) { return one.first >= share; });
    if (above == quantiles.begin()) return above->second;
    const auto below = std::prev(above);
    const double part = (share - below->first) / (above->first - below->first);
    return below->second * std::pow(above->second / below->second, part);
  }
};

// Column GeneratedTokens of the Azure LLM inference traces of 2023
// (github.com/Azure/AzurePublicDataset, data/AzureLLMInferenceTrace_conv.csv with 19,366 requests
// and _code.csv with 8,819; CC-BY; Patel et al., Splitwise, ISCA 2024).
constexpr Published conversation{"conversation",
                                 211.1,
                                 {{{0, 7},
                                   {0.05, 41},
                                   {0.1, 54},
                                   {0.25, 85},
                                   {0.4, 103},
                                   {0.5, 129},
                                   {0.6, 177},
                                   {0.75, 395},
                                   {0.85, 411},
                                   {0.9, 424},
                                   {0.95, 451},
                                   {0.98, 540},
                                   {0.99, 601},
                                   {0.995, 644},
                                   {0.999, 954},
                                   {1, 1000}}}};
constexpr Published code{"code",
                         27.9,
                         {{{0, 6},
                           {0.05, 6},
                           {0.1, 7},
                           {0.25, 9},
                           {0.4, 11},
                           {0.5, 13},
                           {0.6, 16},
                           {0.75, 24},
                           {0.85, 39},
                           {0.9, 55},
                           {0.95, 90},
                           {0.98, 172},
                           {0.99, 252},
                           {0.995, 361},
                           {0.999, 831},
                           {1, 1899}}}};

struct Load {
  int replicas;
  int64_t slots;    // of a replica
  int64_t prompts;  // of a batch
  int64_t samples;  // of a prompt
  int64_t batches;
  double median, sigma;
  int64_t longest;
  const Published* published = nullptr;  // instead of the three
  int64_t sequences() const { return prompts * samples; }
  int64_t expected() const {
    return std::llround(published ? published->mean : median * std::exp(sigma * sigma / 2));
  }

  // Of sequence `s` of all.
  int64_t length(int64_t s) const {
    float z = 0;
    base::normals(11, 5, static_cast<uint64_t>(s), std::span(&z, 1));
    if (published)
      return std::max<int64_t>(
          1, std::llround(
                 published->length(std::erfc(-static_cast<double>(z) / std::numbers::sqrt2) / 2)));
    return std::clamp<int64_t>(std::llround(median * std::exp(sigma * static_cast<double>(z))), 1,
                               longest);
  }
};

// Replicas that write a token of each running sequence a step and begin waiting ones in their
// order.
class Simulated {
 public:
  explicit Simulated(const Load& load)
      : load_(load), replicas_(static_cast<size_t>(load.replicas)) {}

  void begin(int replica, int64_t sequence) {
    replicas_[static_cast<size_t>(replica)].waiting.push_back(sequence);
  }
  std::vector<int64_t> step() {
    std::vector<int64_t> finished;
    ++steps;
    for (Replica& replica : replicas_) {
      while (std::ssize(replica.left) < load_.slots && replica.next < replica.waiting.size()) {
        const int64_t sequence = replica.waiting[replica.next++];
        replica.left.emplace_back(sequence, load_.length(sequence));
      }
      tokens += std::ssize(replica.left);
      for (auto& [sequence, left] : replica.left) {
        if (--left == 0) finished.push_back(sequence);
      }
      std::erase_if(replica.left, [](const auto& one) { return one.second == 0; });
    }
    return finished;
  }

  // Leaves the groups of which an unfinished sequence has so many tokens; which these were.
  std::set<int64_t> leave_longer(int64_t longest) {
    std::set<int64_t> groups;
    for (const Replica& replica : replicas_) {
      for (const auto& [sequence, left] : replica.left) {
        if (load_.length(sequence) - left >= longest) groups.insert(sequence / load_.samples);
      }
    }
    const auto is_left = [&](int64_t sequence) {
      return groups.contains(sequence / load_.samples);
    };
    for (Replica& replica : replicas_) {
      std::erase_if(replica.left, [&](const auto& one) { return is_left(one.first); });
      replica.waiting.erase(
          replica.waiting.begin(),
          replica.waiting.begin() + static_cast<std::ptrdiff_t>(std::exchange(replica.next, 0)));
      std::erase_if(replica.waiting, is_left);
    }
    return groups;
  }

  int64_t steps = 0;
  int64_t tokens = 0;

 private:
  struct Replica {
    std::vector<int64_t> waiting;
    size_t next = 0;
    std::vector<std::pair<int64_t, int64_t>> left;  // sequences and the tokens that they lack
  };
  Load load_;
  std::vector<Replica> replicas_;
};

// A real engine on each rank, which take their steps together.
class Engines {
 public:
  explicit Engines(const Load& load)
      : load_(load),
        spec_(tiny_spec()),
        weights_(tiny_weights(spec_, config::DType::f32)),
        engine_(spec_, weights_, options(load)) {}

  void begin(int replica, int64_t sequence) {
    if (replica != world().rank()) return;
    generate::Request request;
    request.id = static_cast<uint64_t>(sequence);
    request.prompt = tiny_prompt(6, static_cast<uint64_t>(sequence / load_.samples));
    request.sampling.max_new_tokens = load_.length(sequence);
    engine_.submit(std::move(request));
  }
  std::vector<int64_t> step() {
    std::vector<int64_t> mine;
    for (const generate::Result& result : engine_.step().finished)
      mine.push_back(static_cast<int64_t>(result.id));
    ++steps;
    std::vector<int64_t> all = world().all_gather<int64_t>(mine);
    tokens = world().sum(engine_.counters().generated_tokens);
    return all;
  }
  std::set<int64_t> leave_longer(int64_t longest) {
    std::vector<int64_t> mine;
    for (const uint64_t id : engine_.longer(longest))
      mine.push_back(static_cast<int64_t>(id) / load_.samples);
    const auto all = world().all_gather<int64_t>(mine);
    const std::set<int64_t> groups(all.begin(), all.end());
    std::vector<uint64_t> ids;
    for (const uint64_t id : engine_.queue()) {
      if (groups.contains(static_cast<int64_t>(id) / load_.samples)) ids.push_back(id);
    }
    engine_.cancel(ids);
    return groups;
  }

  int64_t steps = 0;
  int64_t tokens = 0;

 private:
  static generate::EngineOptions options(const Load& load) {
    generate::EngineOptions o;
    o.kv_bytes = int64_t{16} << 20;
    o.max_batch = load.slots;
    o.threads = 1;
    return o;
  }
  Load load_;
  model::ModelSpec spec_;
  generate::GeneratorWeights weights_;
  generate::Engine engine_;
};

struct Outcome {
  int64_t steps = 0;
  double occupancy = 0;          // tokens per slot-step
  std::vector<int64_t> learned;  // groups, in the order in which they are learned from
};

// Iteration after iteration as the rollout phase makes them: batches are admitted `depth` ahead of
// what was learned from, each goes to the replicas with the fewest outstanding tokens, and an
// iteration ends when the batch of its number is whole, or as many groups as a batch has are
// finished.
template <class Fleet>
Outcome roll(const Load& load, Order order, int64_t depth) {
  Fleet fleet(load);
  const int64_t expected = load.expected();
  std::vector<int64_t> outstanding(static_cast<size_t>(load.replicas), 0);
  std::map<int64_t, int> replica_of;
  std::map<int64_t, int64_t> left;  // sequences of a group
  std::set<int64_t> finished;       // groups that were not learned from
  int64_t begun = 0;
  const auto begin_up_to = [&](int64_t last) {
    for (; begun < std::min(last, load.batches); ++begun) {
      const std::vector<generate::PromptWork> work(static_cast<size_t>(load.prompts),
                                                   {.answers = load.samples * expected});
      const auto assignment = generate::assign(work, outstanding);
      for (const size_t p : assignment.order) {
        const int64_t group = begun * load.prompts + static_cast<int64_t>(p);
        left[group] = load.samples;
        replica_of[group] = assignment.replica[p];
        outstanding[static_cast<size_t>(assignment.replica[p])] += load.samples * expected;
        for (int64_t s = 0; s < load.samples; ++s)
          fleet.begin(assignment.replica[p], group * load.samples + s);
      }
    }
  };
  Outcome outcome;
  const auto in_batch = [&](int64_t group, int64_t batch) { return group / load.prompts == batch; };
  for (int64_t iteration = 0; iteration < load.batches; ++iteration) {
    begin_up_to(iteration + 1 + depth);
    const auto ready = [&](int64_t group) {
      return order == Order::finished || in_batch(group, iteration);
    };
    while (std::ranges::count_if(finished, ready) < load.prompts) {
      for (const int64_t sequence : fleet.step()) {
        const int64_t group = sequence / load.samples;
        outstanding[static_cast<size_t>(replica_of[group])] -= expected;
        if (--left[group] == 0) finished.insert(group);
      }
    }
    int64_t taken = 0;
    for (auto group = finished.begin(); group != finished.end() && taken < load.prompts;) {
      if (!ready(*group)) {
        ++group;
        continue;
      }
      outcome.learned.push_back(*group);
      group = finished.erase(group);
      ++taken;
    }
  }
  outcome.steps = fleet.steps;
  outcome.occupancy = static_cast<double>(fleet.tokens) /
                      static_cast<double>(fleet.steps * load.slots * load.replicas);
  return outcome;
}

// An iteration as rollout::EarlyStop ends it: `more` prompts are written beside those that are
// learned from, and what is left begins again.
template <class Fleet>
Outcome roll_early(const Load& load, int64_t more) {
  constexpr int64_t longest_wait = 4;
  Fleet fleet(load);
  const auto longest_of = [&](int64_t group) {
    int64_t most = 0;
    for (int64_t s = 0; s < load.samples; ++s)
      most = std::max(most, load.length(group * load.samples + s));
    return most;
  };
  Outcome outcome;
  std::vector<int64_t> open;  // groups, ascending
  int64_t learned_tokens = 0, drawn = 0;
  for (int64_t iteration = 0; iteration < load.batches; ++iteration) {
    const int64_t wanted = std::min(load.prompts + more, (load.batches - iteration) * load.prompts);
    while (std::ssize(open) < wanted) open.push_back(drawn++);
    const std::vector<generate::PromptWork> work(open.size(), {.answers = load.samples});
    const auto assignment =
        generate::assign(work, std::vector<int64_t>(static_cast<size_t>(load.replicas), 0));
    for (size_t p = 0; p < open.size(); ++p) {
      for (int64_t s = 0; s < load.samples; ++s)
        fleet.begin(assignment.replica[p], open[p] * load.samples + s);
    }
    std::map<int64_t, int64_t> left, finished;
    for (const int64_t group : open) left[group] = load.samples;
    while (!left.empty()) {
      for (const int64_t sequence : fleet.step()) {
        const auto at = left.find(sequence / load.samples);
        if (--at->second > 0) continue;
        finished[at->first] = longest_of(at->first);
        left.erase(at);
      }
      const auto is_due = [&](int64_t group) {
        return group / load.prompts <= iteration - longest_wait;
      };
      if (std::ssize(finished) < load.prompts ||
          std::ranges::any_of(left, [&](const auto& one) { return is_due(one.first); }))
        continue;
      std::vector<int64_t> lengths;
      int64_t of_due = 0;
      for (const auto& [group, length] : finished) {
        lengths.push_back(length);
        if (is_due(group)) of_due = std::max(of_due, length);
      }
      std::ranges::sort(lengths);
      for (const int64_t group :
           fleet.leave_longer(std::max(of_due, lengths[static_cast<size_t>(load.prompts) - 1])))
        left.erase(group);
    }
    // What the rule says of all lengths at once.
    std::vector<int64_t> lengths;
    int64_t longest = 0;
    for (const int64_t group : open) {
      lengths.push_back(longest_of(group));
      if (group / load.prompts <= iteration - longest_wait)
        longest = std::max(longest, lengths.back());
    }
    std::ranges::sort(lengths);
    longest = std::max(longest, lengths[static_cast<size_t>(load.prompts) - 1]);
    int64_t taken = 0;
    std::erase_if(open, [&](int64_t group) {
      if (longest_of(group) > longest || taken == load.prompts) return false;
      EXPECT_TRUE(finished.contains(group));
      ++taken;
      outcome.learned.push_back(group);
      for (int64_t s = 0; s < load.samples; ++s)
        learned_tokens += load.length(group * load.samples + s);
      return true;
    });
  }
  outcome.steps = fleet.steps;
  outcome.occupancy = static_cast<double>(learned_tokens) /
                      static_cast<double>(fleet.steps * load.slots * load.replicas);
  return outcome;
}

// Probability of a distance as large between two samples of one distribution (Kolmogorov and
// Smirnov, the limit of many).
double same_distribution(std::vector<double> a, std::vector<double> b) {
  std::ranges::sort(a);
  std::ranges::sort(b);
  double distance = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const double x = std::min(a[i], b[j]);
    while (i < a.size() && a[i] == x) ++i;
    while (j < b.size() && b[j] == x) ++j;
    distance = std::max(distance, std::abs(static_cast<double>(i) / static_cast<double>(a.size()) -
                                           static_cast<double>(j) / static_cast<double>(b.size())));
  }
  const double n = static_cast<double>(a.size()) * static_cast<double>(b.size()) /
                   static_cast<double>(a.size() + b.size());
  const double lambda = distance * (std::sqrt(n) + 0.12 + 0.11 / std::sqrt(n));
  double p = lambda < 0.2 ? 1 : 0;
  for (int k = 1; lambda >= 0.2 && k <= 100; ++k)
    p += (k % 2 ? 2 : -2) * std::exp(-2 * lambda * lambda * k * k);
  return p;
}

void expect_each_once(const Outcome& outcome, const Load& load) {
  const std::set<int64_t> all(outcome.learned.begin(), outcome.learned.end());
  EXPECT_EQ(std::ssize(outcome.learned), load.prompts * load.batches);
  EXPECT_EQ(std::ssize(all), load.prompts * load.batches);
}

TEST(Occupancy, TheSimulationAgreesWithEngines) {
  const Load load{.replicas = world().size(),
                  .slots = 8,
                  .prompts = 16,
                  .samples = 4,
                  .batches = 5,
                  .median = 12,
                  .sigma = 0.8,
                  .longest = 64};
  const std::pair<Order, int64_t> kinds[] = {
      {Order::drawn, 0}, {Order::drawn, 2}, {Order::finished, 2}};
  for (const auto& [order, depth] : kinds) {
    const Outcome simulated = roll<Simulated>(load, order, depth),
                  real = roll<Engines>(load, order, depth);
    const char* name = order == Order::drawn ? "drawn" : "finished";
    SCOPED_TRACE(testing::Message() << name << " depth " << depth);
    expect_each_once(simulated, load);
    expect_each_once(real, load);
    EXPECT_NEAR(static_cast<double>(simulated.steps) / static_cast<double>(real.steps), 1, 0.05);
    if (world().rank() == 0) {
      std::cout << "    " << world().size() << " engines, " << name << ", depth " << depth << ": "
                << real.steps << " steps, occupancy " << real.occupancy << "; simulated "
                << simulated.steps << ", " << simulated.occupancy << std::endl;
    }
  }
}

TEST(Occupancy, TheSimulationOfOverSamplingAgreesWithEngines) {
  const Load load{.replicas = world().size(),
                  .slots = 16,
                  .prompts = 16,
                  .samples = 4,
                  .batches = 8,
                  .median = 12,
                  .sigma = 0.8,
                  .longest = 64};
  for (const int64_t more : {int64_t{0}, load.prompts / 2}) {
    const Outcome simulated = roll_early<Simulated>(load, more),
                  real = roll_early<Engines>(load, more);
    expect_each_once(simulated, load);
    expect_each_once(real, load);
    EXPECT_EQ(simulated.learned, real.learned) << "lengths decide, not time";
    EXPECT_NEAR(static_cast<double>(simulated.steps) / static_cast<double>(real.steps), 1, 0.05);
    if (world().rank() == 0) {
      std::cout << "    " << world().size() << " engines, " << more
                << " prompts more: " << real.steps << " steps, learned tokens per slot-step "
                << real.occupancy << "; simulated " << simulated.steps << ", "
                << simulated.occupancy << std::endl;
    }
  }
}

// 128 replicas of 16 slots, one for each sequence of a batch.
TEST(Occupancy, OverSamplingShortensTheTail) {
  if (world().rank() != 0) return;
  for (const int64_t samples : {1, 4}) {
    for (const double sigma : {0.8, 1.2}) {
      const Load load{.replicas = 128,
                      .slots = 16,
                      .prompts = 2048 / samples,
                      .samples = samples,
                      .batches = 16,
                      .median = 64,
                      .sigma = sigma,
                      .longest = 4096};
      std::cout << "    " << load.prompts << " x " << samples << ", sigma " << sigma << ":";
      double without = 0;
      for (const int64_t more : {int64_t{0}, load.prompts / 4, load.prompts / 2, load.prompts}) {
        const Outcome outcome = roll_early<Simulated>(load, more);
        expect_each_once(outcome, load);
        std::cout << "  " << more << " more " << outcome.occupancy << " ("
                  << outcome.steps / load.batches << " steps)";
        if (more == 0) without = outcome.occupancy;
        if (more == load.prompts / 2) { EXPECT_GT(outcome.occupancy, 1.2 * without); }
      }
      std::cout << std::endl;
    }
  }
}

// 128 replicas of 16 slots, four sequences for each of them in a batch.
TEST(Occupancy, CarriedGroupsFillTheSlotsOfManyReplicas) {
  if (world().rank() != 0) return;
  for (const double sigma : {0.5, 0.8, 1.2}) {
    const Load load{.replicas = 128,
                    .slots = 16,
                    .prompts = 1024,
                    .samples = 8,
                    .batches = 16,
                    .median = 64,
                    .sigma = sigma,
                    .longest = 1024};
    const Outcome fixed = roll<Simulated>(load, Order::drawn, 0),
                  one = roll<Simulated>(load, Order::drawn, 1);
    const Outcome two = roll<Simulated>(load, Order::drawn, 2),
                  four = roll<Simulated>(load, Order::drawn, 4),
                  finished = roll<Simulated>(load, Order::finished, 2);
    std::cout << "    sigma " << sigma << ": static " << fixed.occupancy << ", drawn depth 1 "
              << one.occupancy << ", depth 2 " << two.occupancy << ", depth 4 " << four.occupancy
              << ", finished depth 2 " << finished.occupancy << std::endl;
    for (const Outcome& outcome : {fixed, one, two, four, finished})
      expect_each_once(outcome, load);
    EXPECT_GT(one.occupancy, 1.4 * fixed.occupancy)
        << "the next batch fills the slots that the tail leaves";
    EXPECT_GT(two.occupancy, one.occupancy);
    EXPECT_GT(four.occupancy, two.occupancy);
    EXPECT_GT(finished.occupancy, two.occupancy);
    EXPECT_GT(finished.occupancy, 0.7) << "the last answers of all included";
    EXPECT_LE(fixed.occupancy, 0.55);
  }
}

// The same replicas. With over-sampling one slot for each sequence of a batch, since an iteration
// ends with a length.
TEST(Occupancy, OfPublishedLengths) {
  if (world().rank() != 0) return;
  for (const Published& published : {conversation, code}) {
    SCOPED_TRACE(published.name);
    const Load load{.replicas = 128,
                    .slots = 16,
                    .prompts = 1024,
                    .samples = 8,
                    .batches = 16,
                    .median = 0,
                    .sigma = 0,
                    .longest = 0,
                    .published = &published};
    double mean = 0;
    for (int64_t s = 0; s < load.sequences() * load.batches; ++s)
      mean += static_cast<double>(load.length(s)) /
              static_cast<double>(load.sequences() * load.batches);
    EXPECT_NEAR(mean / published.mean, 1, 0.05) << "quantiles and mean are of one trace";
    const Outcome fixed = roll<Simulated>(load, Order::drawn, 0),
                  one = roll<Simulated>(load, Order::drawn, 1),
                  two = roll<Simulated>(load, Order::drawn, 2);
    const Outcome four = roll<Simulated>(load, Order::drawn, 4),
                  finished = roll<Simulated>(load, Order::finished, 2);
    for (const Outcome& outcome : {fixed, one, two, four, finished})
      expect_each_once(outcome, load);
    Load slots_for_all = load;
    slots_for_all.prompts = 512;
    slots_for_all.samples = 4;
    const Outcome without = roll_early<Simulated>(slots_for_all, 0),
                  early = roll_early<Simulated>(slots_for_all, slots_for_all.prompts / 4);
    for (const Outcome& outcome : {without, early}) expect_each_once(outcome, slots_for_all);
    std::cout << "    " << published.name << ", mean " << mean << ": static " << fixed.occupancy
              << ", drawn depth 1 " << one.occupancy << ", depth 2 " << two.occupancy
              << ", depth 4 " << four.occupancy << ", finished depth 2 " << finished.occupancy
              << "; 512 x 4 static " << without.occupancy << ", over-sampled by a quarter "
              << early.occupancy << std::endl;
    EXPECT_GT(one.occupancy, fixed.occupancy);
    EXPECT_GT(two.occupancy, one.occupancy);
    EXPECT_GT(finished.occupancy, one.occupancy);
    EXPECT_GT(early.occupancy, 1.2 * without.occupancy);
  }
}

// Over 2,000 groups: between the first iterations, which have to begin with short answers, and the
// last, which end with long ones, as many long answers are learned from as were drawn.
TEST(Occupancy, LongAnswersAreNotRarerThanDrawn) {
  if (world().rank() != 0) return;
  const Load load{.replicas = 8,
                  .slots = 16,
                  .prompts = 40,
                  .samples = 4,
                  .batches = 60,
                  .median = 64,
                  .sigma = 1,
                  .longest = 1024};
  std::vector<double> drawn;
  for (int64_t s = 0; s < load.sequences() * load.batches; ++s)
    drawn.push_back(static_cast<double>(load.length(s)));
  for (const int64_t depth : {1, 2, 4}) {
    const Outcome outcome = roll<Simulated>(load, Order::finished, depth);
    expect_each_once(outcome, load);
    std::vector<double> learned;
    for (int64_t place = 5 * load.prompts; place < 55 * load.prompts; ++place) {
      const int64_t group = outcome.learned[static_cast<size_t>(place)];
      for (int64_t s = 0; s < load.samples; ++s)
        learned.push_back(static_cast<double>(load.length(group * load.samples + s)));
    }
    ASSERT_EQ(std::ssize(learned), 2000 * load.samples);
    EXPECT_GT(same_distribution(learned, drawn), 0.01) << "depth " << depth;
  }
  const Outcome early = roll_early<Simulated>(load, load.prompts / 2);
  expect_each_once(early, load);
  std::vector<double> learned;
  for (int64_t place = 5 * load.prompts; place < 55 * load.prompts; ++place) {
    const int64_t group = early.learned[static_cast<size_t>(place)];
    for (int64_t s = 0; s < load.samples; ++s)
      learned.push_back(static_cast<double>(load.length(group * load.samples + s)));
  }
  EXPECT_GT(same_distribution(learned, drawn), 0.01) << "over-sampling";
  // It can fail: what discards the quarter of groups with the longest answers is seen.
  std::vector<double> shortened;
  for (const double length : drawn) {
    if (length < 250) shortened.push_back(length);
  }
  EXPECT_LT(same_distribution(shortened, drawn), 0.01);
}

}  // namespace
}  // namespace trireme::test
