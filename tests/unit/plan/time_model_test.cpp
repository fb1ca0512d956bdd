// The time model against 45 published runs (tests/gold/plan/published.txt): the whole error table
// is printed, no row is left out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/source_folder.hpp"
#include "trireme/plan/time_model.hpp"

namespace trireme::test {
namespace {

struct Row {
  std::map<std::string, std::string> words;
  double operator()(const std::string& key, double otherwise) const {
    const auto found = words.find(key);
    return found == words.end() ? otherwise : std::stod(found->second);
  }
  double operator()(const std::string& key) const { return std::stod(words.at(key)); }
  int number(const std::string& key, int otherwise) const {
    return static_cast<int>((*this)(key, otherwise));
  }
  const std::string& text(const std::string& key) const { return words.at(key); }
};

std::vector<Row> published() {
  std::ifstream file(source_folder() / "tests/gold/plan/published.txt");
  std::vector<Row> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    Row row;
    for (std::string word; words >> word;)
      row.words.emplace(word.substr(0, word.find('=')), word.substr(word.find('=') + 1));
    rows.push_back(std::move(row));
  }
  return rows;
}

plan::Machine machine_of(const Row& row) {
  plan::Machine machine = *plan::known_machine(row.text("machine"));
  machine.flops = row("flops", machine.flops);
  machine.memory_speed = row("memory_speed", machine.memory_speed);
  machine.node_link = row("node_link", machine.node_link);
  machine.device_bytes =
      static_cast<int64_t>(row("device_bytes", static_cast<double>(machine.device_bytes)));
  return machine;
}

plan::ModelWork model_of(const Row& row) {
  return {row("parameters"), row("layers"), row("hidden"), row("hidden"), row("kv_bytes", 0)};
}

plan::TrainingWork training_of(const Row& row) {
  return {.model = model_of(row),
          .length = row("length", row("input", 0) + row("output", 0)),
          .tokens = row("tokens"),
          .ranks = row.number("ranks", 1),
          .per_node = 8,
          .recompute = row.number("recompute", 1) != 0};
}

double trained_tokens_per_second(const Row& row) {
  const plan::Machine machine = machine_of(row);
  plan::TrainingWork work = training_of(row);
  work.tensor_parallel = row.number("tensor_parallel", 1);
  work.overlaps_tensor_parallel = row.number("overlap", 0) != 0;
  const double seconds =
      plan::pass_seconds(machine, work) +
      plan::optimizer_seconds(machine, work.model, work.ranks * work.tensor_parallel);
  return work.tokens / seconds / work.tensor_parallel;
}

plan::GenerationWork generation_of(const Row& row) {
  return {.model = model_of(row),
          .weight_bytes = row("weight_bytes", 2),
          .input = row("input"),
          .output = row("output"),
          .tensor_parallel = row.number("tensor_parallel", 1)};
}

// Rollouts one after another, each scored and trained on; the other models as many parameters of
// the actor's shape.
double rl_seconds(const Row& row) {
  const plan::Machine machine = machine_of(row);
  const int ranks = row.number("ranks", 1), degree = row.number("tensor_parallel", 1);
  const double rollouts = row("rollouts"), samples = row("samples") / rollouts;
  const double generate =
      plan::rollout_seconds(machine, generation_of(row), samples * degree / ranks, row("longest"));
  const plan::TrainingWork work = training_of(row);
  const double passes = samples * (row("input") + row("output")) / ranks / work.tokens;
  const double score =
      passes * plan::forward_seconds(machine, work) * row("scored") / work.model.parameters;
  const double train = (passes * plan::pass_seconds(machine, work) +
                        plan::optimizer_seconds(machine, work.model, ranks)) *
                       row("trained") / work.model.parameters;
  return rollouts * (generate + score + train +
                     plan::sync_seconds(machine, 2 * work.model.parameters, ranks, degree, 8));
}

double modelled(const Row& row) {
  const std::string& kind = row.text("kind");
  if (kind == "train") return trained_tokens_per_second(row);
  if (kind == "serve")
    return plan::generation(machine_of(row), generation_of(row)).tokens_per_second;
  if (kind == "sync")
    return plan::sync_seconds(machine_of(row), row("bytes"), row.number("ranks", 1),
                              row.number("tensor_parallel", 1), 8);
  return rl_seconds(row);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

TEST(TimeModel, AgainstThePublishedRuns) {
  std::set<int> numbers;
  std::vector<double> not_fitted, unseen;
  std::map<std::string, double> worst;
  std::printf("  row  fitted  measured     model   error  \n");
  for (const Row& row : published()) {
    const int number = row.number("row", 0);
    const double measured = row("measured"), model = modelled(row), error = model / measured - 1;
    std::printf("  %3d  %-6s %9.4g %9.4g %+6.1f %%  %s, %s\n", number, row.text("fitted").c_str(),
                measured, model, 100 * error, row.text("what").c_str(), row.text("unit").c_str());
    ASSERT_TRUE(std::isfinite(model) && model > 0) << number;
    numbers.insert(number);
    double& most = worst[row.text("fitted")];
    most = std::max(most, std::abs(error));
    if (row.text("fitted") == "no") not_fitted.push_back(std::abs(error));
    if (row.text("fitted") == "no" && (number < 32 || number > 39))
      unseen.push_back(std::abs(error));
    if (number >= 32 && number <= 39) { EXPECT_LE(std::abs(error), 0.25) << number; }
  }
  std::printf(
      "  median of the rows that nothing was fitted to %.1f %%, without 32-39 %.1f %%; largest of "
      "the fitted %.1f %%, of those beside which shares were set %.1f %%\n",
      100 * median(not_fitted), 100 * median(unseen), 100 * worst["fit"], 100 * worst["hand"]);
  EXPECT_EQ(numbers.size(), 45u);
  EXPECT_EQ(*numbers.begin(), 1);
  EXPECT_EQ(*numbers.rbegin(), 45);
  EXPECT_LE(median(not_fitted), 0.08);
  EXPECT_LE(worst["fit"], 0.05);
  EXPECT_LE(worst["hand"], 0.13);
}

}  // namespace
}  // namespace trireme::test
