// Episodes: turns and observations as samples, and the environment's rewards on their columns
// (F50-F52).
#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>

#include <limits>

#include "parity/cases.hpp"
#include "parity/registry.hpp"
#include "trireme/base/text.hpp"
#include "trireme/ppo/experience.hpp"
#include "trireme/ppo/kl.hpp"

namespace trireme::test {
namespace {

using at::Tensor;
using namespace ppo;

template <class T>
std::vector<T> values_of(const Tensor& x, at::ScalarType type) {
  const Tensor dense = x.to(type).contiguous();
  return {dense.const_data_ptr<T>(), dense.const_data_ptr<T>() + dense.numel()};
}

int64_t max_len_of(const GoldenCase& c) {
  return static_cast<int64_t>(
      c.number("max_len").value_or(static_cast<double>(std::numeric_limits<int32_t>::max())));
}

// What a generator writes of an episode: prompt, turns, and observations after them.
SequenceRecord record_of(const GoldenCase& c) {
  SequenceRecord out;
  const auto rewards = values_of<float>(c.input("rewards"), at::kFloat);
  std::vector<Turn> turns;
  const auto append = [&](const std::string& field) {
    const auto ids = values_of<int32_t>(c.input(field), at::kInt);
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  };
  append("prompt_ids");
  for (int turn = 0; turn < static_cast<int>(*c.number("turns")); ++turn) {
    const auto begin = static_cast<int64_t>(out.ids.size());
    append(base::text("assistant_ids_", turn));
    const auto end = static_cast<int64_t>(out.ids.size());
    out.action_ranges.emplace_back(begin, end);
    turns.push_back({static_cast<int32_t>(end), rewards[static_cast<size_t>(turn)]});
    const std::string suffix = base::text("suffix_ids_", turn);
    if (c.has_input(suffix)) append(suffix);
  }
  out.turns = std::move(turns);
  return out;
}

// The turn of each action column, else -1.
std::vector<int64_t> turn_indices(const Samples& samples, int64_t i) {
  std::vector<int64_t> out;
  const auto& turns = samples.turns[static_cast<size_t>(i)];
  size_t turn = 0;
  for (int64_t t = 0; t < samples.length(i); ++t) {
    while (turn < turns.size() && turns[turn].end <= t) ++turn;
    const bool action = samples.action_mask[static_cast<size_t>(samples.begin(i) + t)] != 0;
    out.push_back(action ? static_cast<int64_t>(turn) : -1);
  }
  return out;
}

// The rewards of the turns on the columns of all tokens.
Tensor rewards_on_columns(const Samples& samples) {
  const Experience experience = Experience::from(samples);
  std::vector<float> sums;
  for (const auto& turns : samples.turns) sums.push_back(reward_of(turns));
  return token_rewards({sums, samples.turns}, at::zeros({samples.tokens()}), experience.mask,
                       experience.segments, 0, std::nullopt);
}

}  // namespace

void check_episode(const GoldenCase& c) {
  const SequenceRecord record = record_of(c);
  Samples samples;
  samples.add(record, max_len_of(c));
  samples = Samples::from_bytes(samples.to_bytes());
  const int64_t length = samples.tokens();
  const auto without_first = [&](const Tensor& x) { return x.narrow(0, 1, length - 1); };
  expect_matches(c, "sequences", at::tensor(samples.ids));
  expect_matches(c, "attention_mask", at::ones({length}));
  expect_matches(c, "action_mask", without_first(Experience::from(samples).mask));
  expect_matches(c, "turn_index", without_first(at::tensor(turn_indices(samples, 0))));
  std::vector<int64_t> ranges;
  for (const auto& [from, to] : record.action_ranges) {
    ranges.push_back(from);
    ranges.push_back(to);
  }
  expect_matches(c, "action_ranges", at::tensor(ranges));
  expect_matches(c, "token_rewards", without_first(rewards_on_columns(samples)));
  expect_matches(c, "response_length", static_cast<double>(response_lengths(samples)[0]));
  expect_matches(c, "total_length", static_cast<double>(length));
  expect_matches(c, "is_clipped", clipped(samples, max_len_of(c))[0]);
}

// The batch travels to another rank and is selected from there backwards.
void check_batch_of_episodes(const GoldenCase& c) {
  Samples samples;
  for (const std::string& member : c.words("members")) {
    const GoldenCase& one = Golden::instance().at(member);
    samples.add(record_of(one), max_len_of(one));
  }
  std::vector<int64_t> backwards;
  for (int64_t i = samples.size(); i-- > 0;) backwards.push_back(i);
  samples = Samples::from_bytes(samples.select(backwards).to_bytes()).select(backwards);
  const int64_t width = c.output("sequences").size(1);
  const auto rows = [&](const Tensor& columns, int64_t skip, double pad) {
    Tensor out = at::full({samples.size(), width - skip}, pad, at::kDouble);
    for (int64_t i = 0; i < samples.size(); ++i) {
      const int64_t length = samples.length(i) - skip;
      out[i].narrow(0, 0, length).copy_(columns.narrow(0, samples.begin(i) + skip, length));
    }
    return out;
  };
  std::vector<int64_t> turns;
  for (int64_t i = 0; i < samples.size(); ++i) {
    for (const int64_t turn : turn_indices(samples, i)) turns.push_back(turn);
  }
  expect_matches(c, "sequences", rows(at::tensor(samples.ids), 0, *c.number("pad_token_id")));
  expect_matches(c, "attention_mask", rows(at::ones({samples.tokens()}), 0, 0));
  expect_matches(c, "action_mask", rows(Experience::from(samples).mask, 1, 0));
  expect_matches(c, "turn_index", rows(at::tensor(turns), 1, -1));
  expect_matches(c, "turn_rewards", rows(rewards_on_columns(samples), 1, 0));
}

// The columns that a case has of padded rows, packed; padding is put back as 0.
void check_turn_token_rewards(const GoldenCase& c) {
  const Tensor mask = c.input("action_mask");
  const Tensor lengths = Golden::instance().at("turns.batch").output("attention_mask").sum(1) - 1;
  const Tensor width = at::arange(mask.size(1)).unsqueeze(0);
  const Tensor inside = width.lt(lengths.unsqueeze(1));
  const auto packed = [&](const char* field) { return c.input(field).masked_select(inside); };
  std::vector<int64_t> cu_seqlens{0};
  for (const int64_t length : values_of<int64_t>(lengths, at::kLong))
    cu_seqlens.push_back(cu_seqlens.back() + length);
  const Segments segments(cu_seqlens);
  const Tensor actions = packed("action_mask");
  const Tensor kl = select(approximate_kl(select(packed("old_log_probs"), actions),
                                          select(packed("ref_log_probs"), actions),
                                          choice(c, "kl_estimator", config::KlEstimator::k1)),
                           actions);
  std::vector<float> rewards;
  std::vector<std::vector<Turn>> turns;
  if (c.has_input("episode_rewards")) {
    rewards = values_of<float>(c.input("episode_rewards"), at::kFloat);
  } else {
    const auto columns = values_of<float>(packed("turn_rewards"), at::kFloat);
    for (int64_t i = 0; i < segments.sequences(); ++i) {
      auto& of_one = turns.emplace_back();
      const int64_t begin = cu_seqlens[static_cast<size_t>(i)];
      for (int64_t t = begin; t < cu_seqlens[static_cast<size_t>(i) + 1]; ++t) {
        const float reward = columns[static_cast<size_t>(t)];
        if (reward == 0) continue;
        of_one.push_back({static_cast<int32_t>(t + 1 - begin), reward});
      }
      rewards.push_back(reward_of(of_one));
    }
  }
  const auto rows = [&](const Tensor& columns) {
    return at::zeros(mask.sizes(), at::kFloat).masked_scatter(inside, columns);
  };
  expect_matches(c, "token_rewards",
                 rows(token_rewards({rewards, turns}, kl, actions, segments, *c.number("kl_coef"),
                                    std::nullopt)));
  if (c.has_output("kl")) expect_matches(c, "kl", rows(kl));
  const Tensor counts = segments.sums(actions.to(at::kFloat)).clamp_min(1);
  if (c.has_output("kl_mean")) expect_matches(c, "kl_mean", segments.sums(kl) / counts);
}

}  // namespace trireme::test
