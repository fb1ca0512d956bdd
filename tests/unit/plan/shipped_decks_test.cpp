// Which shipped decks fit which machine, by the ledger: the table of docs/user/plan_70b.md is
// printed here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "layouts.hpp"
#include "support/source_folder.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/config/models_of.hpp"
#include "trireme/config/placement.hpp"
#include "trireme/model/adapter_files.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/admission.hpp"

namespace trireme::test {
namespace {

model::ModelSpec spec_of(const std::string& folder, model::HeadKind head) {
  return model::describe(config::load_model_shape(source_folder() / folder), head);
}

// A deck with its models by shape, on nodes of that machine.
struct Deck {
  Deck(const std::string& file, const std::string& actor_folder, const std::string& reward_folder,
       int nodes, int per_node, plan::Machine on, std::vector<std::string> overrides = {})
      : options(config::load_deck(source_folder() / file, overrides)),
        actor(model::adapted(spec_of(actor_folder, model::HeadKind::language), options.actor.lora,
                             actor_folder, "actor.lora")),
        machine(std::move(on)),
        node_of_rank(config::block_nodes(nodes * per_node, per_node)),
        roles(config::resolve_ranks(options.ranks, nodes * per_node, node_of_rank)) {
    models.actor = layout(actor);
    models.slices =
        model::tensor_parallel_layout(actor, static_cast<int>(options.generate.tensor_parallel));
    if (options.algo.kl.init_coef != 0 &&
        config::has_reference_model(options, config::Command::ppo))
      models.reference = models.actor;
    const std::string scorer = reward_folder.empty() ? actor_folder : reward_folder;
    if (options.has_critic()) models.critic = layout(spec_of(scorer, model::HeadKind::score));
    if (!reward_folder.empty())
      models.reward_models = {layout(spec_of(reward_folder, model::HeadKind::score))};
  }
  plan::Job job() const { return {options, roles, node_of_rank, models, machine, compute}; }
  plan::Fit fit() const { return plan::fit(job()); }

  config::Options options;
  model::ModelSpec actor;
  plan::Machine machine;
  std::vector<int> node_of_rank;
  config::RoleMap roles;
  plan::JobModels models;
  config::DType compute = config::DType::bf16;
};

Deck deck_70b(const std::string& file, int nodes, const std::string& machine,
              std::vector<std::string> overrides = {}) {
  overrides.push_back("data.prompt_dataset=[\"prompts.jsonl\"]");
  const bool judged = file.find("/ppo") != std::string::npos;  // by a reward model
  return Deck(file, "inputs/models/llama3-70b", judged ? "inputs/models/llama3-8b" : "", nodes, 8,
              *plan::known_machine(machine), overrides);
}

Deck deck_8b(int nodes, int per_node, const std::string& machine,
             const std::string& file = "inputs/science/ppo_8b.toml") {
  const std::vector<std::string> overrides{"data.prompt_dataset=[\"prompts.jsonl\"]"};
  return Deck(file, "inputs/models/llama3-8b", "inputs/models/llama3-8b", nodes, per_node,
              *plan::known_machine(machine), overrides);
}

// Whether it fits with a twentieth of the memory to spare.
bool print(const char* name, const Deck& deck) {
  const plan::Fit fit = deck.fit();
  const auto gigabytes = [](int64_t bytes) { return static_cast<double>(bytes) * 1e-9; };
  std::printf("  %-34s %-8s %3zu  %6.1f of %5.1f GB, in %-9s  host %6.1f of %6.1f GB a node  %s\n",
              name, deck.machine.name.c_str(), deck.node_of_rank.size(), gigabytes(fit.device.peak),
              gigabytes(deck.machine.device_bytes),
              plan::to_string(fit.device.ledger.peak_phase(plan::Place::device)),
              gigabytes(fit.node_bytes), gigabytes(deck.machine.host_bytes),
              fit.fits() ? "fits" : "DOES NOT FIT");
  return fit.fits() && 20 * fit.device.peak <= 19 * deck.machine.device_bytes &&
         20 * fit.node_bytes <= 19 * deck.machine.host_bytes;
}

// Where a deck is to fit.
struct Site {
  std::string machine;
  int nodes, per_node;
};
const std::map<std::string, std::vector<Site>> sites{
    {"ppo_70b.toml", {{"h100", 4, 8}, {"a100-80", 4, 8}, {"h100", 8, 8}}},
    {"ppo_70b_16x8.toml", {{"h100", 16, 8}, {"a100-80", 16, 8}}},
    {"grpo_70b_lora.toml", {{"h100", 1, 8}, {"a100-80", 1, 8}, {"h200", 1, 8}}},
    {"ppo_8b.toml", {{"h100", 1, 8}, {"a100-80", 1, 8}, {"h200", 1, 8}}},
    {"ppo_8b_a100_40.toml", {{"a100-40", 6, 4}}},
};

TEST(ShippedDecks, EachFitsItsMachines) {
  size_t decks = 0;
  std::printf("  deck                               machine  ranks  fullest GPU\n");
  for (const auto& entry :
       std::filesystem::directory_iterator(source_folder() / "inputs/science")) {
    if (entry.path().extension() != ".toml") continue;
    const std::string name = entry.path().filename().string();
    ++decks;
    ASSERT_TRUE(sites.contains(name)) << name << " is to fit some machine: say in this test which";
    for (const Site& site : sites.at(name)) {
      const std::string file = "inputs/science/" + name;
      EXPECT_TRUE(
          print(name.c_str(), name.find("70b") != std::string::npos
                                  ? deck_70b(file, site.nodes, site.machine)
                                  : deck_8b(site.nodes, site.per_node, site.machine, file)));
    }
  }
  EXPECT_EQ(decks, sites.size());
}

TEST(ShippedDecks, WhereElseTheyFit) {
  const std::string plain = "inputs/science/ppo_70b.toml",
                    large = "inputs/science/ppo_70b_16x8.toml";
  EXPECT_FALSE(print("ppo_70b.toml, state on the GPUs",
                     deck_70b(plain, 4, "h100", {"train.optimizer_offload=false"})));
  print("ppo_70b.toml, state on the GPUs",
        deck_70b(plain, 8, "h100", {"train.optimizer_offload=false"}));
  print("ppo_70b.toml, state on the GPUs",
        deck_70b(plain, 16, "h100", {"train.optimizer_offload=false"}));
  print("ppo_70b_16x8.toml", deck_70b(large, 8, "h100"));
  EXPECT_FALSE(print("ppo_70b_16x8.toml", deck_70b(large, 16, "a100-40")));
  EXPECT_FALSE(print("ppo_8b.toml", deck_8b(6, 4, "a100-40")))
      << "a whole copy of the generator's weights leaves too little";
  print("ppo_70b.toml", deck_70b(plain, 4, "h200"));
  print("ppo_70b_16x8.toml", deck_70b(large, 4, "h200"));
  const std::string lora = "inputs/science/grpo_70b_lora.toml";
  EXPECT_FALSE(print("grpo_70b_lora.toml, whole replicas",
                     deck_70b(lora, 1, "h100", {"generate.tensor_parallel=1"})));
  EXPECT_FALSE(print("grpo_70b_lora.toml, no adapter",
                     deck_70b(lora, 1, "h100", {"actor.lora.rank=0", "actor.lora.alpha=16"})));
}

// CPUs: a laptop's memory is enough for everything that the tutorial runs.
TEST(ShippedDecks, TheTutorialFitsFourGigabytes) {
  const plan::Machine laptop{.name = "laptop", .host_bytes = int64_t{4} << 30};
  for (const char* file : {"inputs/tutorial/tiny.toml", "inputs/tutorial/tiny-ppo-rm.toml"}) {
    const std::string reward =
        std::string(file).ends_with("rm.toml") ? "inputs/tutorial/tiny-model" : "";
    Deck deck(file, "inputs/tutorial/tiny-model", reward, 1, 2, laptop);
    deck.compute = config::DType::f32;
    EXPECT_TRUE(print(file, deck));
  }
  Deck arithmetic("inputs/tutorial/arithmetic.toml", "inputs/models/smollm2-135m", "", 1, 2,
                  {.name = "16 GiB", .host_bytes = int64_t{16} << 30});
  arithmetic.compute = config::DType::f32;
  EXPECT_TRUE(print("inputs/tutorial/arithmetic.toml", arithmetic));
}

TEST(NearestFits, FitAndSayWhatToSet) {
  const Deck deck =
      deck_70b("inputs/science/ppo_70b.toml", 4, "h100", {"train.optimizer_offload=false"});
  const auto cut = [&](int degree) { return model::tensor_parallel_layout(deck.actor, degree); };
  const auto remedies = plan::nearest_fits(deck.job(), cut, 6);
  ASSERT_FALSE(remedies.empty());
  const bool offload = std::any_of(remedies.begin(), remedies.end(), [](const auto& remedy) {
    return remedy.change == "train.optimizer_offload=true";
  });
  EXPECT_TRUE(offload) << "the key by which the shipped deck fits";
  for (const auto& remedy : remedies) {
    std::printf("  %6.1f GB  %s\n", 1e-9 * static_cast<double>(remedy.fit.device.peak),
                remedy.change.c_str());
    EXPECT_TRUE(remedy.fit.fits());
  }
}

}  // namespace
}  // namespace trireme::test
