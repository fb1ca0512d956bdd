// The command line without the program: what it asks for, what it refuses, and with which exit
// code.
#include "cli/arguments.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/source_folder.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::cli {
namespace {

using config::error_of;
using test::source_folder;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Words = std::vector<std::string>;

Invocation parse_words(Words words) {
  words.insert(words.begin(), "trireme");
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  return parse(static_cast<int>(argv.size()), argv.data());
}

// Standard output of `call`.
template <class Call>
std::string printed(Call call) {
  testing::internal::CaptureStdout();
  call();
  return testing::internal::GetCapturedStdout();
}

std::string help(const Words& words) {
  return printed([&] { EXPECT_FALSE(parse_words(words).action) << "nothing is left to do"; });
}

std::string joined(const Words& words) {
  std::string out;
  for (const auto& word : words) out += word + " ";
  return out;
}

// An environment variable while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;

 private:
  const char* name_;
};

// A folder with a deck whose files exist.
class CommandLine : public testing::Test {
 protected:
  void SetUp() override {
    // A launcher's variables would decide who speaks.
    for (const char* name :
         {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID", "SLURM_PROCID"})
      ::unsetenv(name);
    folder_ = std::filesystem::temp_directory_path() / base::text("trireme-cli-", getpid());
    std::filesystem::create_directories(folder_ / "model");
    std::ofstream(folder_ / "model/config.json") << "{}";
    std::ofstream(folder_ / "rows.jsonl") << "{\"prompt\": \"1+1=\", \"response\": \"2\"}\n";
    write_deck("[[reward.source]]\nkind = \"rule\"\nrule = \"regex\"\npattern = \"2\"\n");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write_deck(const std::string& rest) const {
    const std::string rows = (folder_ / "rows.jsonl").string();
    const auto tutorial = source_folder() / "inputs/tutorial";
    std::ofstream(folder_ / "a deck.toml")
        << "[model]\nshape = \"" << (tutorial / "tiny-model").string() << "\"\ntokenizer = \""
        << (tutorial / "tokenizer").string() << "\"\n[data]\nprompt_dataset = [\"" << rows
        << "\"]\ndataset = [\"" << rows
        << "\"]\nmax_len = 64\n[rollout]\nmax_new_tokens = 16\nbatch_size = 8\n[train]\nbatch_size "
           "= 8\n"
        << rest;
  }
  std::string deck() const { return (folder_ / "a deck.toml").string(); }
  std::string dry(const std::string& command, Words more = {}) const {
    more.insert(more.begin(), {command, deck(), "--dry-run"});
    return printed([&] {
      const auto invocation = parse_words(more);
      EXPECT_EQ(invocation.needs, Needs::nothing);
      EXPECT_EQ(invocation.action(nullptr), ExitCode::done);
    });
  }

  std::filesystem::path folder_;
};

TEST_F(CommandLine, HelpNamesEverySubcommandAndExitCode) {
  const std::string text = help({"--help"});
  for (const char* word : {"ppo", "sft", "rm", "dpo", "generate", "score", "tokenize", "init",
                           "convert", "inspect", "report", "selftest", "--help-deck", "--config"}) {
    EXPECT_THAT(text, HasSubstr(word));
  }
  for (const ExitCode code :
       {ExitCode::done, ExitCode::usage, ExitCode::bad_data, ExitCode::input_missing,
        ExitCode::unfit_environment, ExitCode::internal, ExitCode::out_of_memory, ExitCode::locked,
        ExitCode::io_error, ExitCode::stopped_with_checkpoint, ExitCode::stopped_without_checkpoint,
        ExitCode::permission, ExitCode::configuration}) {
    EXPECT_THAT(text, HasSubstr(base::text(static_cast<int>(code), " "))) << "exit code";
  }
  EXPECT_THAT(help({"generate", "--help"}), AllOf(HasSubstr("--max-new-tokens"),
                                                  HasSubstr("--top-p"), HasSubstr("default auto")));
  EXPECT_THAT(help({"score", "--help"}), HasSubstr("default fp32"));
  EXPECT_THAT(help({"ppo", "--help"}),
              AllOf(HasSubstr("--dry-run"), HasSubstr("--help-deck SECTION")));
}

TEST_F(CommandLine, WhatTheProgramKnowsOfItself) {
  EXPECT_THAT(help({"--version"}), HasSubstr("Trireme "));
  EXPECT_THAT(help({"--config"}),
              AllOf(HasSubstr("LibTorch"), HasSubstr("HDF5"), HasSubstr("MPI")));
  EXPECT_THAT(help({"--keys"}), HasSubstr("train.batch_size"));
  EXPECT_THAT(help({"--help-deck", "train"}),
              AllOf(HasSubstr("train.batch_size"), Not(HasSubstr("rollout.batch_size"))));
  EXPECT_THAT(help({"--help-deck", "rollout.batch_size"}),
              AllOf(HasSubstr("rollout.batch_size"), Not(HasSubstr("train.batch_size"))));
  EXPECT_THAT(help({"--help-deck", "all"}),
              AllOf(HasSubstr("train.batch_size"), HasSubstr("rollout.batch_size")));
  EXPECT_THAT(error_of(ExitCode::usage,
                       [] {
                         parse_words({"--help-deck", "train.batchsize"});
                       }),
              HasSubstr("train.batch_size"));
}

TEST_F(CommandLine, OneRankOfAJobSpeaks) {
  const Variable step("SLURM_STEP_NUM_TASKS",
                      "4");  // inside srun: a batch script's own shell has SLURM_PROCID, too
  for (const char* launcher :
       {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID", "SLURM_PROCID"}) {
    for (const Words& words :
         {Words{"--help"}, Words{"--version"}, Words{"--config"}, Words{"--keys"},
          Words{"--help-deck", "train"}, Words{"sft", "--help"}}) {
      const Variable other(launcher, "3");
      EXPECT_THAT(help(words), IsEmpty()) << launcher << " " << joined(words);
      const Variable first(launcher, "0");
      EXPECT_THAT(help(words), Not(IsEmpty())) << launcher << " " << joined(words);
    }
  }
}

TEST_F(CommandLine, MistakesAreUsageErrors) {
  const std::string d = deck();
  const Words generate{"generate", "--model", "m", "--input", "i", "--output", "o"};
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const std::vector<std::pair<Words, std::string>> mistakes{
      {{}, "subcommand"},
      {{"no-such-command"}, "'no-such-command' is neither"},
      {{"pppo", d}, "'pppo' is neither a subcommand nor an option (nearest: ppo)"},
      {{"--verison"}, "nearest: --version"},
      {{"ppo"}, "deck"},
      {{"--no-such-option"}, "--no-such-option"},
      {{"ppo", d, "--no-such-option"}, "--no-such-option"},
      {{"ppo", d, "--ranks", "4"}, "--dry-run"},
      {{"ppo", d, "--dry-run", "--ranks", "0"}, "--ranks"},
      {{"ppo", d, "--dry-run", "--ranks", "many"}, "--ranks"},
      {{"ppo", d, "--dry-run", "--ranks-per-node", "-1"}, "--ranks-per-node"},
      {{"generate", "--model", "m"}, "--input"},
      {with(generate, {"--n", "0"}), "--n"},
      {with(generate, {"--n", "4096"}), "--n"},
      {with(generate, {"--backend", "fast"}), "--backend"},
      {with(generate, {"--max-new-tokens", "0"}), "--max-new-tokens"},
      {with(generate, {"--temperature", "-1"}), "--temperature"},
      {with(generate, {"--temperature", "hot"}), "--temperature"},
      {with(generate, {"--top-p", "1.5"}), "--top-p"},
      {with(generate, {"--top-k", "-1"}), "--top-k"},
      {with(generate, {"--seed", "-1"}), "--seed"},
      {with(generate, {"--tp", "0"}), "--tp"},
      {with(generate, {"--dtype", "fp16"}), "fp16"},
      {{"score", "--model", "m", "--input", "i", "--output", "o", "--temperature", "0"},
       "--temperature"},
      {{"tokenize", "--model", "m", "--input", "i", "--output", "o", "--chat", "--decode"},
       "--chat"},
      {{"init", "--shape", "s"}, "--output"},
      {{"convert", "in"}, "output"},
      {{"inspect"}, "path"},
      {{"report"}, "runs"},
  };
  for (const auto& [words, named] : mistakes) {
    EXPECT_THAT(error_of(ExitCode::usage, [&] { parse_words(words); }),
                AllOf(HasSubstr(named), ContainsRegex("see trireme ([a-z]+ )?--help")))
        << joined(words);
  }
}

TEST_F(CommandLine, ToolsNeedMpiWhereTheyShareWork) {
  const Words files{"--model", "m", "--input", "i", "--output", "o"};
  auto device = config::Device::cpu;
  const auto needs = [&](Words words, bool takes_files) {
    if (takes_files) words.insert(words.end(), files.begin(), files.end());
    const auto invocation = parse_words(words);
    EXPECT_TRUE(invocation.action);
    device = invocation.device;
    return invocation.needs;
  };
  EXPECT_EQ(needs({"generate", "--stop", "a", "--stop", "b", "--ignore-eos"}, true), Needs::mpi);
  EXPECT_EQ(device, config::Device::automatic);
  EXPECT_EQ(needs({"generate", "--device", "cuda"}, true), Needs::mpi);
  EXPECT_EQ(device, config::Device::cuda);
  EXPECT_EQ(needs({"score"}, true), Needs::mpi);
  EXPECT_EQ(device, config::Device::automatic);
  EXPECT_EQ(needs({"score", "--device", "cpu"}, true), Needs::mpi);
  EXPECT_EQ(device, config::Device::cpu);
  EXPECT_EQ(needs({"tokenize", "--decode"}, true), Needs::nothing);
  EXPECT_EQ(needs({"init", "--shape", "s", "--output", "o"}, false), Needs::nothing);
  EXPECT_EQ(needs({"convert", "in", "out"}, false), Needs::nothing);
  EXPECT_EQ(needs({"inspect", "path", "--verify"}, false), Needs::nothing);
  EXPECT_EQ(needs({"report", "a", "b", "--output", "c.html"}, false), Needs::nothing);
  EXPECT_EQ(needs({"selftest", "--folder", "/scratch"}, false), Needs::mpi);
}

TEST_F(CommandLine, DecksAreReadAndCheckedBeforeAnythingStarts) {
  const auto run = parse_words({"ppo", deck()});
  EXPECT_EQ(run.needs, Needs::mpi);
  EXPECT_EQ(run.device, config::Options{}.run.device);
  EXPECT_EQ(parse_words({"ppo", deck(), "run.device=cpu"}).device, config::Device::cpu);
  EXPECT_EQ(parse_words({"ppo", deck(), "run.device=cuda", "run.name=x"}).device,
            config::Device::cuda)
      << "overrides come behind the deck";
  const auto refusal = [&](ExitCode code, const Words& words) {
    return error_of(code, [&] { parse_words(words); });
  };
  EXPECT_THAT(refusal(ExitCode::input_missing, {"ppo", (folder_ / "nowhere.toml").string()}),
              HasSubstr("nowhere.toml"));
  EXPECT_THAT(refusal(ExitCode::configuration, {"ppo", deck(), "train.batchsize=4"}),
              AllOf(HasSubstr("train.batchsize"), HasSubstr("train.batch_size")));
  EXPECT_THAT(refusal(ExitCode::configuration, {"ppo", deck(), "train.batch_size=four"}),
              HasSubstr("train.batch_size"));
  EXPECT_THAT(refusal(ExitCode::configuration, {"ppo", deck(), "no_equals_sign"}),
              HasSubstr("no_equals_sign"));
  EXPECT_THAT(refusal(ExitCode::configuration, {"ppo", deck(), "run.seed=1", "run.seed=2"}),
              HasSubstr("run.seed"));
  EXPECT_THAT(refusal(ExitCode::input_missing, {"ppo", deck(), "model.shape=gone"}),
              AllOf(HasSubstr("model.shape"), HasSubstr("gone")));
  write_deck("");
  EXPECT_THAT(refusal(ExitCode::configuration, {"ppo", deck()}), HasSubstr("reward.source"))
      << "what ppo needs";
  EXPECT_TRUE(parse_words({"sft", deck()}).action) << "and sft does not";
}

TEST_F(CommandLine, DryRunsShowTheRoleMap) {
  const std::string two_nodes =
      dry("ppo", {"--ranks", "8", "--ranks-per-node", "4", "ranks.trainer=4", "ranks.generator=4"});
  EXPECT_THAT(two_nodes,
              AllOf(HasSubstr("deck: valid for ppo"), HasSubstr("ranks: 8 on 2 nodes, 4 a node"),
                    HasSubstr("role: "), HasSubstr("data: data.prompt_dataset, 1 records")));
  EXPECT_THAT(dry("ppo"), HasSubstr("ranks: 1 on 1 node, 1 a node"));
  EXPECT_THAT(dry("ppo", {"--ranks", "3", "--ranks-per-node", "100"}),
              HasSubstr("ranks: 3 on 1 node, 3 a node"));
  EXPECT_THAT(dry("ppo", {"--ranks", "5", "--ranks-per-node", "2"}),
              HasSubstr("ranks: 5 on 3 nodes, 2 a node"));
  const std::string supervised = dry("sft", {"--ranks", "4"});
  EXPECT_THAT(supervised, AllOf(HasSubstr("deck: valid for sft"), Not(HasSubstr("generator"))));
  const Variable other("OMPI_COMM_WORLD_RANK", "1");
  EXPECT_THAT(dry("ppo"), IsEmpty());
}

TEST_F(CommandLine, DryRunsRefuseWhatTheRunWould) {
  auto code = ExitCode::configuration;
  const auto refusal = [&](const Words& more) {
    Words words{"ppo", deck(), "--dry-run"};
    words.insert(words.end(), more.begin(), more.end());
    return error_of(code, [&] { parse_words(words).action(nullptr); });
  };
  EXPECT_THAT(refusal({"--ranks", "2", "ranks.trainer=4"}),
              AllOf(HasSubstr("ranks.trainer"), HasSubstr("4"), HasSubstr("2 ranks")));
  EXPECT_THAT(refusal({"--ranks", "4", "generate.tensor_parallel=3"}),
              HasSubstr("generate.tensor_parallel"));
  EXPECT_THAT(refusal({"--ranks", "4", "train.shard_group=3"}), HasSubstr("train.shard_group"));
  EXPECT_THAT(refusal({"data.max_len=100000"}),
              AllOf(HasSubstr("data.max_len = 100000"), HasSubstr("positions")));
  code = ExitCode::bad_data;
  EXPECT_THAT(refusal({"model.shape=" + (folder_ / "model").string()}), HasSubstr("model"))
      << "of a model that is none";
  std::ofstream(folder_ / "rows.jsonl", std::ios::app) << "{\"prompt\": 1}\n";
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("rows.jsonl:2"), HasSubstr("prompt")));
  code = ExitCode::configuration;
  EXPECT_THAT(refusal({"run.production=true", "fault.crash_at=ckpt.begin"}),
              HasSubstr("run.production"));
}

// What a run would meet iterations later, or after its models are loaded.
TEST_F(CommandLine, DryRunsCheckWhatRewardsCompareWith) {
  const auto refusal = [&](ExitCode code, const Words& more) {
    Words words{"ppo", deck(), "--dry-run"};
    words.insert(words.end(), more.begin(), more.end());
    return error_of(code, [&] { parse_words(words).action(nullptr); });
  };
  const auto rows = [&](const char* text) { std::ofstream(folder_ / "rows.jsonl") << text; };
  EXPECT_THAT(refusal(ExitCode::configuration, {"reward.source.0.pattern=\"((\""}),
              HasSubstr("reward source rule0: pattern = \"((\""));
  EXPECT_THAT(refusal(ExitCode::configuration, {"reward.source.0.name=\"math/verify\""}),
              HasSubstr("letters, digits"));
  const Words exact{"reward.source.0.rule=exact", "reward.source.0.pattern=\"\""};
  EXPECT_THAT(refusal(ExitCode::bad_data, exact), HasSubstr("rows.jsonl:1: no label"));
  rows("{\"prompt\": \"1+1=\", \"label\": \"2\"}\n{\"prompt\": \"2\", \"label\": \"x\"}\n");
  EXPECT_THAT(dry("ppo", exact), HasSubstr("data: data.prompt_dataset, 2 records"));
  EXPECT_THAT(
      refusal(ExitCode::bad_data, {"reward.source.0.rule=number", "reward.source.0.pattern=\"\""}),
      HasSubstr("rows.jsonl:2: the label \"x\""));
  EXPECT_THAT(refusal(ExitCode::bad_data, {exact[0], exact[1], "reward.source.0.label_key=answer"}),
              HasSubstr("no column \"answer\""));
  std::ofstream(folder_ / "held.jsonl") << "{\"prompt\": \"1+1=\"}\n";
  const std::string held = (folder_ / "held.jsonl").string();
  EXPECT_THAT(refusal(ExitCode::bad_data,
                      {exact[0], exact[1], "eval.dataset=[\"" + held + "\"]", "eval.steps=1"}),
              HasSubstr("held.jsonl:1: no label"));
}

TEST_F(CommandLine, DryRunsAskEachPluginOnce) {
  const auto plugin = [&](const std::string& script) {
    write_deck("[[reward.source]]\nkind = \"plugin\"\nname = \"judge\"\ncommand = [\"sh\", \"" +
               (folder_ / "judge.sh").string() + "\"]\n");
    std::ofstream(folder_ / "judge.sh") << script;
  };
  plugin(
      "read -r x; echo '{\"id\": \"0\", \"reward\": 0.5, \"metrics\": {\"a\": 1}}'; cat "
      ">/dev/null\n");
  EXPECT_THAT(dry("ppo"),
              AllOf(HasSubstr("plugin judge: an empty answer to "),
                    HasSubstr("rows.jsonl:1 gets reward 0.5, a 1"),
                    HasSubstr("warning: no record has a label (data.label_key = \"label\"")));
  plugin("echo 'no module named x' >&2\nexit 1\n");
  EXPECT_THAT(error_of(ExitCode::unfit_environment,
                       [&] {
                         parse_words({"ppo", deck(), "--dry-run"}).action(nullptr);
                       }),
              AllOf(HasSubstr("no module named x"), HasSubstr("--dry-run=files")));
  EXPECT_THAT(printed([&] {
                parse_words({"ppo", deck(), "--dry-run=files"}).action(nullptr);
              }),
              AllOf(HasSubstr("deck: valid for ppo"), Not(HasSubstr("plugin judge: an empty"))));
  EXPECT_THAT(error_of(ExitCode::usage,
                       [&] {
                         parse_words({"ppo", deck(), "--dry-run=file"});
                       }),
              HasSubstr("files"));
}

}  // namespace
}  // namespace trireme::cli
