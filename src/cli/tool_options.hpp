// Options of subcommands that have no deck, for those with many of their own.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/common_options.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::cli {

inline void add_options(CLI::App& app, tools::InitCommand& c) {
  app.add_option("--shape", c.shape, "config.json or its folder (inputs/models/...)")->required();
  app.add_option("--output", c.output, "Model folder to write")->required();
  app.add_option("--tokenizer", c.tokenizer, "Folder whose tokenizer files are copied");
  app.add_option("--seed", c.seed, "Of the weights")->check(CLI::NonNegativeNumber);
  add_dtype(app, c.dtype);
  add_force(app, c.force, "a model");
}

inline void add_options(CLI::App& app, tools::ImportCommand& c) {
  add_words(app, "system", c.origin, "openrlhf, trl or verl");
  app.get_option("system")->required();
  app.add_option("file", c.input,
                 "A script with the command line, a YAML or JSON file, or a Python file with a "
                 "...Config(...)");
  app.add_option("--output", c.output, "Deck to write (default: the screen)");
  app.add_option_function<std::string>(
         "--for",
         [&c](const std::string& word) {
           const auto& words = config::Words<config::Trainer>::list;
           c.trainer = static_cast<config::Trainer>(
               std::find(std::begin(words), std::end(words), word) - std::begin(words));
         },
         "Subcommand of the deck: ppo, sft, rm or dpo (default: what the file trains)")
      ->check(CLI::IsMember({"ppo", "sft", "rm", "dpo"}));
  app.add_flag("--names", c.names, "Print the table of names instead");
  add_force(app, c.force, "a deck");
}

inline void add_options(CLI::App& app, tools::SelftestCommand& c) {
  app.add_option("--folder", c.folder,
                 "Where a small checkpoint is written and removed again: the file system of runs");
  app.add_option("--timeout", c.timeout, "Seconds without progress after which a rank has hung")
      ->check(CLI::PositiveNumber);
  add_device(app, c.device);
  // As fault.at and fault.io_fail of a deck; for tests, and not in the help.
  app.add_option("--fault-at", c.fault_at)->group("");
  app.add_option("--fault-io-fail", c.fault_io_fail)->group("");
}

inline void add_options(CLI::App& sub, tools::ConvertCommand& c) {
  sub.add_option("input", c.input,
                 ".gguf file, checkpoint (or run folder), model folder or adapter folder")
      ->required();
  sub.add_option("output", c.output, "Model folder to write")->required();
  sub.add_option("--part", c.part, "Of a checkpoint: actor, critic or ema");
  sub.add_flag("--merge", c.merge, "Add an adapter to its base");
  sub.add_option("--base", c.base, "The base of an adapter (default: where it says)");
  sub.add_option("--model-config", c.config,
                 "Of a checkpoint: folder with config.json and tokenizer (default: where the "
                 "run's deck has its model)");
  add_dtype(sub, c.dtype);
  add_force(sub, c.force, "a model");
}

}  // namespace trireme::cli
