// The subcommands beside the pipelines, a function each; `cli` parses and calls. Which are
// collective over world stands with them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/config/foreign_names.hpp"
#include "trireme/config/options.hpp"

namespace trireme::tools {

// How the lines of an input become tokens, as the deck's keys of these names in [data].
struct ReadingOptions {
  std::string chat_template_kwargs;
  std::string date;  // empty: today
  config::AddSpecialTokens special_tokens = config::AddSpecialTokens::once;
};

// `trireme generate`: prompts from JSON lines, answers as JSON lines in the order they finish.
// Collective; ranks are replicas of `tensor_parallel` ranks each, which read their prompts
// themselves and send their answers to rank 0 when they have some. Started again after a run that
// was cut off it goes on (tools/answer_file.hpp).
struct GenerateCommand {
  std::filesystem::path model;
  std::vector<std::string> adapters;  // a folder, or any number of NAME=FOLDER
  config::AdapterForm adapter_form = config::AdapterForm::apart;
  std::filesystem::path input;
  std::filesystem::path output;
  int64_t n = 1;
  int64_t max_new_tokens = 64;
  int64_t min_new_tokens = 0;
  double temperature = 1;
  double top_p = 1;
  int64_t top_k = 0;
  double min_p = 0;
  double repetition_penalty = 1;
  uint64_t seed = 1;
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;
  std::vector<std::string> logit_bias;  // text/logit_bias.hpp
  int64_t max_batch = 64;               // sequences that a replica decodes together
  int64_t speculation_tokens = 0;       // generate::EngineOptions
  config::ComputeType dtype = config::ComputeType::automatic;
  config::GenerateBackend backend = config::GenerateBackend::automatic;
  config::Device device = config::Device::automatic;
  config::RolloutWeights weights = config::RolloutWeights::model;
  int tensor_parallel = 1;
  bool log_probs = false;
  bool ignore_eos = false;
  ReadingOptions reading = {};
  bool force = false;  // replace an output that is there
};
ExitCode run_generate(const GenerateCommand& command, const comm::Session& session);

// `trireme score`: log-probabilities of given tokens, and rewards with a reward model. Collective;
// the model is sharded over all ranks.
struct ScoreCommand {
  std::filesystem::path model;
  std::filesystem::path adapter;  // empty: none
  config::AdapterForm adapter_form = config::AdapterForm::apart;
  std::filesystem::path reward_model;  // empty: none
  std::filesystem::path input;
  std::filesystem::path output;
  config::ComputeType dtype = config::ComputeType::fp32;
  config::Device device = config::Device::automatic;
  double temperature = 1;
  int64_t micro_batch_tokens = 4096;
  ReadingOptions reading = {};
  bool force = false;
};
ExitCode run_score(const ScoreCommand& command, const comm::Session& session);

// `trireme tokenize`: text to ids, ids to text, or messages to text and ids. One process.
enum class TokenizeMode : uint8_t { encode, decode, chat };
struct TokenizeCommand {
  std::filesystem::path model;
  std::filesystem::path input;
  std::filesystem::path output;
  TokenizeMode mode = TokenizeMode::encode;
  ReadingOptions reading = {};
  bool force = false;
};
ExitCode run_tokenize(const TokenizeCommand& command);

// `trireme init`: random weights of a given shape, as a Hugging Face folder. One process.
struct InitCommand {
  std::filesystem::path shape;  // config.json or its folder
  std::filesystem::path output;
  std::filesystem::path tokenizer;  // folder whose tokenizer files are copied; empty: none
  uint64_t seed = 1;
  config::DType dtype = config::DType::bf16;
  bool force = false;
};
ExitCode run_init(const InitCommand& command);

// `trireme import`: a deck from a command line of OpenRLHF, TRL's configuration, or verl's YAML or
// overrides; and what it could not carry over. One process.
struct ImportCommand {
  config::Origin origin = config::Origin::openrlhf;
  std::filesystem::path input;
  std::filesystem::path output;            // empty: the screen
  std::optional<config::Trainer> trainer;  // none: what the file says
  bool names = false;                      // print the table of names instead
  bool force = false;
};
ExitCode run_import(const ImportCommand& command);

// `trireme convert`: GGUF -> safetensors folder, checkpoint -> safetensors folder, safetensors ->
// safetensors of another type, adapter and its base -> safetensors folder (`merge`). Tensor by
// tensor; never the whole model in memory. One process.
struct ConvertCommand {
  std::filesystem::path input;   // .gguf file, checkpoint folder, model or adapter folder
  std::filesystem::path output;  // model folder
  std::filesystem::path config;  // for checkpoints: folder with config.json and tokenizer; empty:
                                 // the folder that the run started this part from
  std::string part = "actor";    // of a checkpoint: actor, critic or ema
  bool merge = false;            // an adapter into its base
  std::filesystem::path base;    // of an adapter; empty: where it says
  config::DType dtype = config::DType::bf16;
  bool force = false;
};
ExitCode run_convert(const ConvertCommand& command);

// `trireme inspect PATH`: a run's state, or the contents of a checkpoint, a model folder, a
// safetensors or GGUF file, or a trace. One process.
struct InspectCommand {
  std::filesystem::path path;
  bool verify = false;  // of a run: its checkpoints
};
ExitCode run_inspect(const InspectCommand& command);

// `trireme report RUN...`: report.html of a run, or of several beside each other. One process; runs
// may be at work.
struct ReportCommand {
  std::vector<std::filesystem::path> runs;
  std::filesystem::path output;  // empty: RUN/report.html, of several report.html
};
ExitCode run_report(const ReportCommand& command);

// `trireme selftest`: collectives, weight syncs, optimizer steps against PyTorch's numbers, a
// checkpoint, on the ranks and devices at hand; one JSON line on standard output. Collective.
// Returns done; internal where a number is wrong or a rank does not answer; else the code of what
// failed: unfit_environment, io_error, permission.
struct SelftestCommand {
  std::filesystem::path folder = ".";  // where the checkpoint is written and removed again
  config::Device device = config::Device::automatic;
  double timeout = 60;                // seconds without progress after which a rank has hung
  std::vector<std::string> fault_at;  // fault.at and fault.io_fail of a deck, for tests
  std::string fault_io_fail;
};
ExitCode run_selftest(const SelftestCommand& command, const comm::Session& session);

}  // namespace trireme::tools
