#include "torch/torch.hpp"

#include "trireme/tools/dry_run.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "trireme/config/models_of.hpp"
#include "trireme/config/placement.hpp"
#include "trireme/environment/environments.hpp"
#include "trireme/learn/datasets.hpp"
#include "trireme/learn/model_start.hpp"
#include "trireme/model/trained_head.hpp"
#include "trireme/reward/checks.hpp"
#include "trireme/reward/judge.hpp"
#include "trireme/reward/model_source.hpp"
#include "trireme/reward/reading.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::tools {
namespace {

// At once: an error that follows goes to another stream.
void print_line(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

// config.json, and the headers of weights, of all models that the run would open.
void check_models(const config::Options& options, config::Command command,
                  const text::Tokenizer& tokenizer) {
  const bool ppo = command == config::Command::ppo;
  const learn::ModelStart trained = learn::trained_start(options, model::trained_head(command));
  tokenizer.check_model(trained.spec.shape.vocab);
  std::optional<learn::ModelStart> critic;
  if (ppo && options.has_critic()) critic = learn::critic_start(options, trained);
  if (config::needs_reference(options, command)) learn::reference_start(options, trained);
  const std::vector<std::string> names = reward::source_names(options);
  for (size_t i = 0; ppo && i < options.reward.source.size(); ++i) {
    const config::RewardSource& source = options.reward.source[i];
    if (source.kind == config::RewardKind::model)
      reward::check_model(source, names[i], options.reward.normalize_enable);
  }
  if (ppo) learn::check_positions(options, trained, critic);
}

void print_counts(const std::string& key, const data::SetCounts& counts,
                  const data::SetOptions& set) {
  std::string line =
      base::text("data: ", key, ", ",
                 std::accumulate(counts.rows.begin(), counts.rows.end(), int64_t{0}), " records");
  if (counts.too_long > 0) line += base::text(", ", counts.too_long, " too long and left out");
  if (counts.empty > 0) line += base::text(", ", counts.empty, " empty and left out");
  print_line(line);
  for (const data::RemarkLine& remark : data::describe_remarks(counts, set))
    print_line((remark.warning ? "warning: " : "data: ") + remark.text);
}

// The prompts, and what reward sources make of them.
void check_prompts(const config::Options& options, const text::Tokenizer& tokenizer,
                   Plugins plugins) {
  std::vector<data::PromptSet> sets;
  const auto load = [&](const char* key, const config::Strings& files) {
    if (files.empty()) return;
    const data::SetOptions set = learn::set_options(options, files, options.max_len() - 1);
    sets.push_back(data::PromptSet::load(set, tokenizer));
    reward::check_chats(options, files, tokenizer, sets.back());
    print_counts(key, sets.back().counts(), set);
  };
  load("data.prompt_dataset", options.data.prompt_dataset);
  load("eval.dataset", options.eval.dataset);
  std::vector<const data::PromptSet*> all;
  for (const data::PromptSet& set : sets) all.push_back(&set);
  for (const std::string& warning : reward::check_labels(options, all))
    print_line("warning: " + warning);
  for (const std::string& line : reward::check_judges(options, all)) print_line(line);
  if (plugins == Plugins::left_alone) return;
  for (const std::string& line : reward::try_plugins(options, all)) print_line(line);
  for (const std::string& line : environment::try_environment(options, all)) print_line(line);
}

// Every line of the data, encoded as the run would.
void check_data(const config::Options& options, config::Command command,
                const text::Tokenizer& tokenizer, Plugins plugins) {
  const auto check = [&](const char* key, const config::Strings& files, config::RowKind kind) {
    if (files.empty()) return;
    const data::SetOptions set = learn::set_options(options, files, options.max_len());
    print_counts(key, learn::TrainingSet::load(kind, set, tokenizer).counts(), set);
  };
  if (command == config::Command::ppo) {
    check_prompts(options, tokenizer, plugins);
    if (options.actor.ptx_coef > 0)
      check("data.pretrain_dataset", options.data.pretrain_dataset, config::RowKind::example);
    return;
  }
  const config::RowKind kind = config::row_kind(options, command);
  check("data.dataset", options.data.dataset, kind);
  check("eval.dataset", options.eval.dataset, kind);
}

}  // namespace

ExitCode run_dry(const config::Options& options, config::Command command, const DryRun& machine) {
  const int per_node =
      machine.ranks_per_node > 0 ? std::min(machine.ranks_per_node, machine.ranks) : machine.ranks;
  const auto node_of_rank = config::block_nodes(machine.ranks, per_node);
  config::Options asked = options;
  if (command != config::Command::ppo) asked.ranks = {};  // every rank trains
  const auto roles = config::resolve_ranks(asked.ranks, machine.ranks, node_of_rank);
  config::check_placement(asked, roles);

  if (command == config::Command::ppo) {
    reward::check_rules(options);
    environment::check_environment(options);
  }
  if (asked.data.date.empty()) asked.data.date = text::today();
  const auto tokenizer = learn::load_tokenizer(asked);
  check_models(options, command, tokenizer);

  const int nodes = node_of_rank.back() + 1;
  print_line(base::text("deck: valid for ", config::to_string(command)));
  print_line(base::text("ranks: ", machine.ranks, " on ", nodes, nodes == 1 ? " node" : " nodes",
                        ", ", per_node, " a node"));
  const auto lines = config::describe_placement(asked, roles, node_of_rank);
  if (command == config::Command::ppo) {
    for (const auto& line : lines) print_line("role: " + line);
    for (const auto& warning : config::placement_warnings(asked, roles, node_of_rank))
      print_line("warning: " + warning);
  } else {
    print_line("role: " + lines.front());
  }
  check_data(options, command, tokenizer, machine.plugins);
  return ExitCode::done;
}

}  // namespace trireme::tools
