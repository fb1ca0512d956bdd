// Whole runs of a tiny model in this process, one behind the other, in a folder of their own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "driver/resume_point.hpp"
#include "support/samples.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/checkpoint/reader.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/driver/commands.hpp"
#include "trireme/driver/run_state.hpp"
#include "trireme/kernels/runtime.hpp"

namespace trireme::driver {

using Overrides = std::vector<std::string>;

inline constexpr const char* tiny_model = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
  "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 272, "max_position_embeddings": 128,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": true,
  "initializer_range": 0.05, "torch_dtype": "float32"})";

// Of every command. Answers end at a vowel or a digit, and rewards differ: a loss means something.
inline constexpr const char* tiny_deck = R"(
[run]
seed = 3
iterations = 3
log_level = "error"
threads = "1"
[model]
dtype = "fp32"
[actor]
adam.lr = 1e-3
[train]
batch_size = 4
recompute = 0
[ckpt]
interval = 1
save_hf = "never"
[trace]
enabled = false
)";
inline constexpr const char* tiny_ppo_deck = R"(
[rollout]
batch_size = 4
n_samples_per_prompt = 2
max_new_tokens = 8
stop = ["a", "e", "i", "o", "u", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
save_samples = -1
[[reward.source]]
kind = "rule"
rule = "regex"
pattern = "[a-zA-Z0-9]"
length_target = 4
length_weight = 0.25
[critic]
adam.lr = 1e-3
[generate]
kv_memory = "1MiB"
max_batch = 8
)";

inline const comm::Session& session() {
  static const auto* session = new comm::Session;  // never destroyed: MPI ends before statics do
  return *session;
}

// Everything here is collective over world.
class TinyRuns : public testing::Test {
 protected:
  TinyRuns() {
    static const auto* kernels = new kernels::Runtime;  // once in a process, it ends with it
    static_cast<void>(kernels);
    if (test::world().rank() == 0) {
      std::filesystem::create_directories(in("shape"));
      std::ofstream(in("shape/config.json")) << tiny_model;
      std::ofstream prompts(in("prompts.jsonl")), examples(in("examples.jsonl")),
          pairs(in("pairs.jsonl"));
      const char* questions[] = {"1+2=", "12+30=", "7+8=", "what is 2+2? ",
                                 "9+1=", "100+1=", "3+3=", "five plus six is "};
      int answer = 0;
      for (const char* question : questions) {
        const auto text = std::to_string(answer++);
        prompts << nlohmann::json{{"prompt", question}, {"label", text}}.dump() << "\n";
        examples << nlohmann::json{{"prompt", question}, {"response", text + "."}}.dump() << "\n";
        pairs << nlohmann::json{{"prompt", question}, {"chosen", text}, {"rejected", "no " + text}}
                     .dump()
              << "\n";
      }
    }
    test::world().barrier();
  }

  std::filesystem::path in(const std::string& name) const { return parent_.path() / name; }

  // The deck of a run in the folder `run`, with these keys set otherwise.
  config::Options deck(config::Command command, const std::string& run,
                       const Overrides& overrides = {}) const {
    const bool pairs = command == config::Command::rm || command == config::Command::dpo;
    const std::string key = command == config::Command::ppo ? "prompt_dataset" : "dataset";
    const std::string rows = command == config::Command::ppo ? "prompts.jsonl"
                             : pairs                         ? "pairs.jsonl"
                                                             : "examples.jsonl";
    Overrides all{"run.dir=" + quoted(in(run)), "model.shape=" + quoted(in("shape")),
                  "model.tokenizer=" + quoted(test::tokenizer_folder()),
                  "data." + key + "=[" + quoted(in(rows)) + "]", "data.max_len=48"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const std::string text =
        std::string(tiny_deck) + (command == config::Command::ppo ? tiny_ppo_deck : "");
    auto options = config::parse_deck(text, "deck", all);
    config::validate(options, command);
    return options;
  }
  // The held-out rows of a command whose rows these are.
  std::string held_out(const std::string& rows) const {
    return "eval.dataset=[" + quoted(in(rows)) + "]";
  }

  ExitCode go(config::Command command, const std::string& run, const Overrides& overrides = {}) {
    static constexpr std::pair<config::Command,
                               ExitCode (*)(const config::Options&, const comm::Session&)>
        functions[] = {{config::Command::ppo, &run_ppo},
                       {config::Command::sft, &run_sft},
                       {config::Command::rm, &run_rm},
                       {config::Command::dpo, &run_dpo}};
    const auto* const found =
        std::ranges::find(functions, command, [](auto& f) { return f.first; });
    const ExitCode code = found->second(deck(command, run, overrides), session());
    test::world().barrier();
    return code;
  }

  // ---- A run's files, as every rank sees them. ----

  std::vector<nlohmann::json> lines(const std::string& file) const {
    std::istringstream text(base::read_file(in(file)));
    std::vector<nlohmann::json> out;
    for (std::string line; std::getline(text, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  }
  std::vector<nlohmann::json> metrics(const std::string& run) const {
    return lines(run + "/metrics.jsonl");
  }
  // Without what may differ between equal runs.
  std::vector<nlohmann::json> timeless(const std::string& run) const {
    auto all = metrics(run);
    for (auto& line : all) {
      for (const char* own : {"seconds", "busy", "memory", "threads", "weight_sync", "generation",
                              "plugins", "time", "iterations", "epoch"})
        line.erase(own);
    }
    return all;
  }
  // How the last start ended.
  nlohmann::json last_start(const std::string& run) const {
    return nlohmann::json::parse(base::read_file(in(run) / "status.json")).at("starts").back();
  }
  std::vector<int64_t> steps(const std::string& run) const {
    std::vector<int64_t> steps = checkpoint::list_steps(in(run) / "ckpt");
    std::ranges::sort(steps);
    return steps;
  }
  RunState state(const std::string& run, int64_t step) const {
    const checkpoint::Reader reader(test::world(),
                                    in(run) / "ckpt" / checkpoint::folder_name(step));
    return run_state_from_json(reader.state());
  }
  bool exists(const std::string& file) const { return std::filesystem::exists(in(file)); }

 private:
  static std::string quoted(const std::filesystem::path& path) {
    return "\"" + path.string() + "\"";
  }

  const test::SharedFolder parent_;
};

}  // namespace trireme::driver
