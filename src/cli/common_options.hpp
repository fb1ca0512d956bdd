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

inline void add_device(CLI::App& app, config::Device& device) {
  app.add_option_function<std::string>(
         "--device",
         [&device](const std::string& word) {
           device = config::choice_of<config::Device>(word).value();
         },
         "auto: GPUs where every rank sees one; cpu; cuda (default auto)")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
}

inline void add_force(CLI::App& app, bool& force, const char* what) {
  app.add_flag("--force", force, base::text("Replace ", what, " that is there already"));
}

}  // namespace trireme::cli
