#include "cli/arguments.hpp"

#include <CLI/CLI.hpp>
#include <concepts>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>

#include "build_facts.hpp"
#include "cli/common_options.hpp"
#include "cli/tool_options.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/base/log.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/config/key_table.hpp"
#include "trireme/job/facts.hpp"
#include "trireme/tools/commands.hpp"
#include "trireme/tools/dry_run.hpp"
#include "trireme/tools/models_page.hpp"

namespace trireme::cli {
namespace {

constexpr const char* exit_codes =
    "Exit codes: 0 done, 64 usage, 65 bad data, 66 input missing, 69 environment unfit, 70 "
    "internal error or lost rank,\n"
    "71 out of memory, 73 run folder locked, 74 I/O error, 75 stopped with a checkpoint (run "
    "again), 76 stopped without one,\n"
    "77 permission, 78 configuration.";

std::string build_text() {
  return base::text(version_text, "\n  build     ", build_type, ", ", compiler, "\n  LibTorch  ",
                    torch_build, "\n  MPI       ", mpi_build, "\n  HDF5      ", hdf5_version,
                    "\n  Kokkos    ", kokkos_version, "\n  CUDA      ", cuda_build,
                    "\n  GPUs      ", gpu_variant, "\n");
}

void require_working_folder() {
  VALIDATE(lost_working_folder == 0, ExitCode::unfit_environment,
           "the working folder cannot be used (", std::strerror(lost_working_folder),
           "; it was removed, or its file system is gone): change to a folder that is there and "
           "start again");
}

bool speaks() { return job::speaks_for_job(job::process_environment); }

[[noreturn]] void print_and_leave(const std::string& text) {
  if (speaks()) std::fputs(text.c_str(), stdout);
  throw CLI::Success();
}

class Parser {
 public:
  Parser() {
    app_.set_version_flag("--version", version_text);
    add_page("--config", build_text, "What this program was built with");
    add_page("--keys", config::key_table_markdown, "The deck keys as a Markdown page");
    add_page("--expert-keys", config::expert_key_table_markdown, "Those that few runs need");
    add_page("--models", tools::models_page, "All models that can be read as a Markdown page");
    app_.add_option_function<std::string>(
        "--help-deck",
        [](const std::string& key) { print_and_leave(config::key_help(key == "all" ? "" : key)); },
        "Help on a deck section or key (all: every key)");
    app_.footer(exit_codes);
    app_.option_defaults()->always_capture_default();  // help shows them
    app_.require_subcommand(1);
    add_training(config::Command::ppo, "Train a policy with PPO or a relative of it",
                 &driver::run_ppo);
    add_training(config::Command::sft, "Fine-tune on examples", &driver::run_sft);
    add_training(config::Command::rm, "Train a reward model on pairs of answers", &driver::run_rm);
    add_training(config::Command::dpo, "Train a policy on preferences (DPO, KTO, ORPO and others)",
                 &driver::run_dpo);
    add_plan();
    add_generate();
    add_score();
    add_tokenize();
    add_init();
    add_import();
    add_convert();
    add_inspect();
    add_report();
    add_selftest();
  }

  Invocation parse(int argc, char** argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::Success& success) {  // help or version: print and leave
      if (speaks()) app_.exit(success);
      return {};
    } catch (const CLI::ParseError& error) {
      const std::string unknown = unknown_word();
      if (const std::string key = dashed_key({argv, static_cast<size_t>(argc)}); !key.empty())
        throw UserError(ExitCode::usage,
                        base::text("--", key, " is not an option: keys of a deck are written ", key,
                                   "=VALUE, without dashes"));
      const auto subcommands = app_.get_subcommands();
      const std::string whose = subcommands.empty() ? "" : subcommands.front()->get_name() + " ";
      throw UserError(ExitCode::usage, base::text(unknown.empty() ? error.what() : unknown,
                                                  ": see trireme ", whose, "--help"));
    }
    if (!invocation_) return {};
    require_working_folder();
    return invocation_();
  }

 private:
  void add_page(const char* flag, std::string (*page)(), const char* help) {
    app_.add_flag_callback(
        flag, [page] { print_and_leave(page()); }, help);
  }

  static std::string dashed_key(std::span<char*> words) {
    for (const auto& info : config::key_infos())
      for (const std::string_view word : words)
        if (word == "--" + info.name || word.starts_with("--" + info.name + "=")) return info.name;
    return {};
  }

  // An unknown word in the place of a subcommand, with the nearest subcommand; "": none.
  std::string unknown_word() const {
    const auto unknown = app_.remaining();
    if (unknown.empty() || !app_.get_subcommands().empty()) return "";
    std::vector<std::string> known;
    for (const auto* sub : app_.get_subcommands({})) known.push_back(sub->get_name());
    for (const auto* option : app_.get_options()) known.push_back(option->get_name());
    const std::string near = base::nearest(unknown.front(), known);
    return base::text("'", unknown.front(), "' is neither a subcommand nor an option",
                      near.empty() ? "" : " (nearest: " + near + ")");
  }

  using Trainer = ExitCode (*)(const config::Options&, const comm::Session&);

  void add_training(config::Command command, const char* help, Trainer trainer) {
    auto* sub = app_.add_subcommand(std::string(config::to_string(command)), help);
    auto deck = std::make_shared<std::string>();
    auto overrides = std::make_shared<std::vector<std::string>>();
    sub->add_option("deck", *deck, "The run's deck (TOML)")->required();
    sub->add_option("overrides", *overrides, "section.key=value, over the deck");
    auto machine = std::make_shared<tools::DryRun>();
    auto wants_dry = std::make_shared<std::string>();
    auto* dry =
        sub->add_flag("--dry-run", *wants_dry,
                      "Check the deck, models, data and labels, ask each reward plugin once "
                      "(--dry-run=files: none), and print the role map for --ranks");
    dry->check(CLI::IsMember({"true", "files"}));
    sub->add_option("--ranks", machine->ranks,
                    "Ranks of the job, for --dry-run (default: those of mpirun, else 1)")
        ->needs(dry)
        ->check(CLI::Range(1, 1 << 20));
    sub->add_option("--ranks-per-node", machine->ranks_per_node,
                    "Ranks of a node, for --dry-run (0: all)")
        ->needs(dry)
        ->check(CLI::NonNegativeNumber);
    sub->footer("trireme --help-deck SECTION explains the keys.");
    sub->final_callback([this, sub, deck, overrides, command, trainer, wants_dry, machine] {
      invocation_ = [=] {
        auto options = std::make_shared<config::Options>(config::load_deck(*deck, *overrides));
        if (options->run.name.empty())
          options->run.name = std::filesystem::path(*deck).stem().string();
        config::validate(*options, command, {.deck = *deck});
        if (speaks()) {
          for (const auto& warning : config::warnings(*options, command)) log::warning(warning);
        }
        if (!wants_dry->empty()) {
          if (*wants_dry == "files") machine->plugins = tools::Plugins::left_alone;
          const auto launch = job::read_launch(job::process_environment);
          if (sub->count("--ranks") == 0 && launch.local_size > 0)
            *machine = {launch.size, launch.local_size, machine->plugins};
          return Invocation{Needs::nothing,
                            [options, command, machine](const comm::Session*) {
                              return speaks() ? tools::run_dry(*options, command, *machine)
                                              : ExitCode::done;
                            },
                            config::Device::cpu};
        }
        return Invocation{Needs::mpi,
                          [options, trainer](const comm::Session* session) {
                            return trainer(*options, *session);
                          },
                          options->run.device, base::isa_from(config::to_string(options->run.isa))};
      };
    });
  }

  void add_plan() {
    auto* sub = app_.add_subcommand(
        "plan", "Memory of a job, of ppo also the modelled time, before it is submitted");
    auto deck = std::make_shared<std::string>();
    auto overrides = std::make_shared<std::vector<std::string>>();
    auto command = std::make_shared<tools::PlanCommand>();
    sub->add_option("deck", *deck, "The run's deck (TOML)")->required();
    sub->add_option("overrides", *overrides, "section.key=value, over the deck");
    sub->add_option("--nodes", command->nodes, "Nodes of the job")->check(CLI::Range(1, 1 << 16));
    sub->add_option("--gpus-per-node", command->gpus_per_node, "One rank each")
        ->check(CLI::Range(1, 64));
    sub->add_option("--machine", command->machine,
                    "h100, h200, a100-80, a100-40, gh200, a file of a machine (.toml), or this: "
                    "CPUs and this node's free memory");
    sub->add_flag("--search", command->search,
                  "Ranks settings of the deck that fit, by the modelled time of an iteration");
    sub->add_option("--command", command->pipeline,
                    "The pipeline that runs the deck (default: ppo; dpo where the deck has "
                    "data.dataset and no data.prompt_dataset)")
        ->check(CLI::IsMember({"ppo", "sft", "rm", "dpo"}));
    sub->final_callback([this, deck, overrides, command] {
      invocation_ = [=] {
        auto options = std::make_shared<config::Options>(config::load_deck(*deck, *overrides));
        command->deck = *deck;
        return Invocation{Needs::nothing,
                          [options, command](const comm::Session*) {
                            return speaks() ? tools::run_plan(*options, *command) : ExitCode::done;
                          },
                          config::Device::cpu};
      };
    });
  }

  // A tool: its options fill `command`, `run` does it: with MPI where it takes a session, else in
  // one process, of however many a launcher starts.
  template <class Command, class Run>
  CLI::App* add_tool(const char* name, const char* help, std::shared_ptr<Command> command,
                     Run run) {
    auto* sub = app_.add_subcommand(name, help);
    sub->final_callback([this, command, run] {
      invocation_ = [=] {
        auto device = config::Device::cpu;
        if constexpr (requires { command->device; }) device = command->device;
        if constexpr (std::invocable<Run, const Command&, const comm::Session&>) {
          return Invocation{
              Needs::mpi,
              [command, run](const comm::Session* session) { return run(*command, *session); },
              device};
        } else {
          return Invocation{Needs::nothing,
                            [command, run](const comm::Session*) {
                              return speaks() ? run(*command) : ExitCode::done;
                            },
                            device};
        }
      };
    });
    return sub;
  }

  void add_generate() {
    auto c = std::make_shared<tools::GenerateCommand>();
    auto* sub = add_tool("generate", "Answer prompts (JSON lines in, JSON lines out)", c,
                         tools::run_generate);
    sub->add_option("--model", c->model, "Model folder")->required();
    add_adapter(*sub, c->adapters, c->adapter_form,
                "; NAME=FOLDER, several times: each prompt names its own in a column `adapter`, or "
                "has none");
    sub->add_option("--input", c->input, "Lines with `prompt`, `messages` or `input_ids`")
        ->required();
    sub->add_option("--output", c->output, "Answers; - for standard output")->required();
    sub->add_option("--n", c->n, "Samples of each prompt")->check(CLI::Range(1, 4095));
    sub->add_option("--max-new-tokens", c->max_new_tokens, "Length limit")
        ->check(CLI::PositiveNumber);
    sub->add_option("--min-new-tokens", c->min_new_tokens, "Tokens before an answer may end")
        ->check(CLI::NonNegativeNumber);
    add_sampling(*sub, *c);
    sub->add_option("--stop", c->stop, "Text that ends an answer; may be given several times");
    sub->add_option("--stop-token-ids", c->stop_token_ids,
                    "Tokens that end an answer, also with --ignore-eos")
        ->delimiter(',');
    sub->add_option("--logit-bias", c->logit_bias,
                    "ID=BIAS or text:TEXT=BIAS, added before drawing (-100: never drawn); may be "
                    "given several times");
    sub->add_option("--max-batch", c->max_batch, "Sequences that a replica decodes together")
        ->check(CLI::Range(1, 65536));
    sub->add_option("--speculation-tokens", c->speculation_tokens,
                    "Guesses of the next tokens that a step computes while up to 4 sequences run, "
                    "by what stood there before; same answers; 0: off")
        ->check(CLI::Range(0, 7));
    sub->add_option("--tp", c->tensor_parallel, "Ranks that share one replica")
        ->check(CLI::PositiveNumber);
    sub->add_option_function<std::string>(
           "--backend",
           [c](const std::string& word) {
             c->backend = config::choice_of<config::GenerateBackend>(word).value();
           },
           "fused (kernels of our own, on CPUs) or torch (LibTorch's operations); default auto")
        ->check(CLI::IsMember({"auto", "fused", "torch"}));
    add_device(*sub, c->device);
    sub->add_option_function<std::string>(
           "--weights",
           [c](const std::string& word) {
             c->weights = config::choice_of<config::RolloutWeights>(word).value();
           },
           "model (the weights as they are) or int8 (copies in 8 bits, on CPUs: faster, other "
           "answers); default model")
        ->check(CLI::IsMember({"model", "int8"}));
    sub->add_flag("--log-probs", c->log_probs, "Log-probability of each token");
    add_reading(*sub, c->reading);
    sub->add_flag("--ignore-eos", c->ignore_eos, "Go on behind the end token");
    add_dtype(*sub, c->dtype);
    add_force(*sub, c->force, "an output");
  }

  void add_score() {
    auto c = std::make_shared<tools::ScoreCommand>();
    auto* sub = add_tool("score", "Log-probabilities of given answers or texts, and rewards", c,
                         tools::run_score);
    sub->add_option("--model", c->model, "Model folder")->required();
    add_adapter(*sub, c->adapter, c->adapter_form, "");
    sub->add_option("--reward-model", c->reward_model, "Sequence-classification model folder");
    sub->add_option(
           "--input", c->input,
           "Lines with `prompt` and `response` (log-probabilities of the response), `messages` "
           "that end with the assistant's turn, or `text` or `input_ids` as they stand")
        ->required();
    sub->add_option("--output", c->output, "Scores; - for standard output")->required();
    sub->add_option("--temperature", c->temperature, "Divides the logits")
        ->check(CLI::PositiveNumber);
    sub->add_option("--micro-batch-tokens", c->micro_batch_tokens, "Tokens of one forward pass")
        ->check(CLI::PositiveNumber);
    add_reading(*sub, c->reading);
    add_device(*sub, c->device);
    add_dtype(*sub, c->dtype);
    add_force(*sub, c->force, "an output");
  }

  void add_tokenize() {
    auto c = std::make_shared<tools::TokenizeCommand>();
    auto* sub = add_tool("tokenize", "Text to ids and back", c, tools::run_tokenize);
    sub->add_option("--model", c->model, "Model folder")->required();
    sub->add_option("--input", c->input,
                    "Lines with `text`, `ids` (--decode) or `messages` (--chat)")
        ->required();
    sub->add_option("--output", c->output, "Result; - for standard output")->required();
    add_reading(*sub, c->reading);
    auto* decode = sub->add_flag_callback(
        "--decode", [c] { c->mode = tools::TokenizeMode::decode; }, "ids to text");
    sub->add_flag_callback(
           "--chat", [c] { c->mode = tools::TokenizeMode::chat; }, "messages to text and ids")
        ->excludes(decode);
    add_force(*sub, c->force, "an output");
  }

  void add_init() {
    auto c = std::make_shared<tools::InitCommand>();
    add_options(*add_tool("init", "Random weights of a given shape", c, tools::run_init), *c);
  }

  void add_import() {
    auto c = std::make_shared<tools::ImportCommand>();
    add_options(*add_tool("import", "A deck from the settings of OpenRLHF, TRL or verl", c,
                          tools::run_import),
                *c);
  }

  void add_convert() {
    auto c = std::make_shared<tools::ConvertCommand>();
    add_options(*add_tool("convert", "GGUF, checkpoint or safetensors to a model folder", c,
                          tools::run_convert),
                *c);
  }

  void add_inspect() {
    auto c = std::make_shared<tools::InspectCommand>();
    auto* sub = add_tool("inspect", "How a run stands; what is in a checkpoint, a model, a trace",
                         c, tools::run_inspect);
    sub->add_option("path", c->path,
                    "Run folder, checkpoint, model folder, .safetensors, .gguf, trace.json")
        ->required();
    sub->add_flag("--verify", c->verify, "Compare all digests of checkpoints");
  }

  void add_report() {
    auto c = std::make_shared<tools::ReportCommand>();
    auto* sub = add_tool("report", "A page about a run, or about several beside each other", c,
                         tools::run_report);
    sub->add_option("runs", c->runs, "Run folders, finished or at work")->required();
    sub->add_option("--output", c->output,
                    "The page (default: report.html, of one run in its folder)");
  }

  void add_selftest() {
    auto c = std::make_shared<tools::SelftestCommand>();
    auto* sub =
        add_tool("selftest",
                 "Whether this machine gives the right numbers, on the ranks and devices at hand",
                 c, tools::run_selftest);
    add_options(*sub, *c);
  }

  CLI::App app_{"Trireme: RLHF training as one MPI program", "trireme"};
  std::function<Invocation()> invocation_;
};

}  // namespace

int lost_working_folder = 0;

Invocation parse(int argc, char** argv) { return Parser().parse(argc, argv); }

}  // namespace trireme::cli
