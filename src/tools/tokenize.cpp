#include "tools/job_record.hpp"
#include "tools/reading.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/learn/datasets.hpp"
#include "trireme/learn/file_digest.hpp"
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
      line.add("ids", std::span<const int32_t>(record.encode(
                          tokenizer, learn::special_tokens_of(command.reading.special_tokens))));
      break;
    case TokenizeMode::decode:
      VALIDATE(record.ids.has_value(), ExitCode::bad_data, record.where, ": a line needs `ids`");
      line.add("text", tokenizer.decode(*record.ids));
      break;
    case TokenizeMode::chat: {
      VALIDATE(!record.messages.empty(), ExitCode::bad_data, record.where,
               ": a line needs `messages`");
      const std::string text = record.render(tokenizer);
      line.add("text", text);
      line.add("ids", std::span<const int32_t>(tokenizer.encode(text)));
      break;
    }
  }
  return line.str() + "\n";
}

ToolJob job_of(const TokenizeCommand& command) {
  constexpr const char* modes[] = {"encode", "decode", "chat"};
  ToolJob job{{"mode", modes[static_cast<size_t>(command.mode)]},
              {"tokenizer", learn::digest_of_descriptions(command.model)},
              {"input", learn::digest_of_file(command.input)}};
  add_reading(job, command.reading);
  return job;
}

}  // namespace

ExitCode run_tokenize(const TokenizeCommand& asked) {
  TokenizeCommand command = asked;
  const Existing there = existing(command.force);
  check_output_file(command.output, {command.input, command.model}, Existing::replaced);
  command.reading.date = date_for(command.output, command.reading, there);
  const auto tokenizer = load_tokenizer(command.model, command.reading);
  const auto inputs = data::read_inputs(command.input);
  const ToolJob job = job_of(command);
  if (is_done(command.output, job, there)) return ExitCode::done;
  OutputFile output(command.output, there);
  for (const auto& record : inputs) output.write(line_of(command, tokenizer, record));
  output.finish(job);
  return ExitCode::done;
}

}  // namespace trireme::tools
