#include "tools/output.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/text/tokenizer.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::tools {
namespace {

std::string line_of(const TokenizeCommand& command, const text::Tokenizer& tokenizer,
                    const data::InputRecord& record) {
  data::JsonObject line;
  switch (command.mode) {
    case TokenizeMode::encode:
      VALIDATE(record.text.has_value(), ExitCode::bad_data, record.where, ": a line needs `text`");
      line.add("ids", std::span<const int32_t>(
                          tokenizer.encode(*record.text, text::SpecialTokens::added)));
      break;
    case TokenizeMode::decode:
      VALIDATE(record.ids.has_value(), ExitCode::bad_data, record.where, ": a line needs `ids`");
      line.add("text", tokenizer.decode(*record.ids));
      break;
    case TokenizeMode::chat: {
      VALIDATE(!record.messages.empty(), ExitCode::bad_data, record.where,
               ": a line needs `messages`");
      const auto prompt = record.add_generation_prompt ? text::GenerationPrompt::with
                                                       : text::GenerationPrompt::without;
      line.add("text", tokenizer.render_chat(record.messages, prompt));
      line.add("ids", std::span<const int32_t>(tokenizer.encode_chat(record.messages, prompt)));
      break;
    }
  }
  return line.str() + "\n";
}

}  // namespace

ExitCode run_tokenize(const TokenizeCommand& command) {
  const auto tokenizer = text::Tokenizer::load(command.model);
  const auto inputs = data::read_inputs(command.input);
  OutputFile output(command.output);
  for (const auto& record : inputs) output.write(line_of(command, tokenizer, record));
  output.finish();
  return ExitCode::done;
}

}  // namespace trireme::tools
