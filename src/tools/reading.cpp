#include "tools/reading.hpp"

namespace trireme::tools {

text::Tokenizer load_tokenizer(const std::filesystem::path& model, const ReadingOptions& reading) {
  if (!reading.chat_template_kwargs.empty())
    text::check_template_variables(reading.chat_template_kwargs, "--chat-template-kwargs",
                                   ExitCode::usage);
  if (!reading.date.empty()) text::check_date(reading.date, "--date", ExitCode::usage);
  return text::Tokenizer::load(model).with_template_inputs(
      {reading.chat_template_kwargs, reading.date.empty() ? text::today() : reading.date});
}

}  // namespace trireme::tools
