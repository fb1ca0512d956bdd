// Options that several subcommands have.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "trireme/base/text.hpp"
#include "trireme/config/choices.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::cli {

template <class E>
void add_words(CLI::App& app, const char* option, E& value, const std::string& help) {
  const std::vector<std::string> words(std::begin(config::Words<E>::list),
                                       std::end(config::Words<E>::list));
  app.add_option_function<std::string>(
         option,
         [&value, words](const std::string& word) {
           value = static_cast<E>(std::find(words.begin(), words.end(), word) - words.begin());
         },
         base::text(help, " (default ", config::to_string(value), ")"))
      ->check(CLI::IsMember(words));
}
inline void add_dtype(CLI::App& app, config::ComputeType& dtype) {
  add_words(app, "--dtype", dtype,
            "Compute type; auto: bf16 where all ranks multiply it natively, else fp32");
}
inline void add_dtype(CLI::App& app, config::DType& dtype) {
  add_words(app, "--dtype", dtype, "Type of the stored weights");
}

// How lines become tokens.
inline void add_reading(CLI::App& app, tools::ReadingOptions& reading) {
  app.add_option(
      "--chat-template-kwargs", reading.chat_template_kwargs,
      "Variables for the chat template, a JSON object; a line's own `tools`, `documents` "
      "and `chat_template_kwargs` go before it");
  app.add_option("--date", reading.date,
                 "YYYY-MM-DD, for chat templates that call strftime_now (default: today)");
  add_words(app, "--special-tokens", reading.special_tokens,
            "The tokenizer's tokens around texts: once (not where a text has them), always, never");
}

inline void add_sampling(CLI::App& sub, tools::GenerateCommand& c) {
  sub.add_option("--temperature", c.temperature, "0: greedy")->check(CLI::NonNegativeNumber);
  sub.add_option("--top-p", c.top_p, "Nucleus")->check(CLI::Range(0.0, 1.0));
  sub.add_option("--top-k", c.top_k, "0: off")->check(CLI::NonNegativeNumber);
  sub.add_option("--min-p", c.min_p, "Of the likeliest; 0: off")->check(CLI::Range(0.0, 1.0));
  sub.add_option("--repetition-penalty", c.repetition_penalty, "Of tokens seen; 1: none")
      ->check(CLI::PositiveNumber);
  sub.add_option("--seed", c.seed, "Of the draws")->check(CLI::NonNegativeNumber);
}

inline void add_device(CLI::App& app, config::Device& device) {
  app.add_option_function<std::string>(
         "--device",
         [&device](const std::string& word) {
           device = config::choice_of<config::Device>(word).value();
         },
         "auto: GPUs where every rank sees one; cpu; cuda (default auto)")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
}

// An adapter of the model, and how it is used. `Folders`: a path, or a list of words.
template <class Folders>
void add_adapter(CLI::App& app, Folders& folders, config::AdapterForm& form, const char* more) {
  auto* option = app.add_option(
      "--adapter", folders,
      base::text("Folder of a low-rank adapter of the model, as peft stores it (default: none)",
                 more));
  add_words(app, "--adapter-as", form,
            "apart: beside the weights; merged: added to them, with other last bits; disabled: "
            "the model alone");
  app.get_option("--adapter-as")->needs(option);
}

inline void add_force(CLI::App& app, bool& force, const char* what) {
  app.add_flag("--force", force, base::text("Replace ", what, " that is there already"));
}

}  // namespace trireme::cli
