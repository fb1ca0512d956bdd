#include "tools/reading.hpp"

#include "tools/job_record.hpp"
#include "trireme/base/error.hpp"
#include "trireme/config/choices.hpp"

namespace trireme::tools {

text::Tokenizer load_tokenizer(const std::filesystem::path& model, const ReadingOptions& reading) {
  if (!reading.chat_template_kwargs.empty())
    text::check_template_variables(reading.chat_template_kwargs, "--chat-template-kwargs",
                                   ExitCode::usage);
  if (!reading.date.empty()) text::check_date(reading.date, "--date", ExitCode::usage);
  return text::Tokenizer::load(model).with_template_inputs(
      {reading.chat_template_kwargs, reading.date.empty() ? text::today() : reading.date});
}

void require_rows(std::span<const int32_t> ids, int64_t rows, const std::string& where) {
  for (const int32_t id : ids) {
    VALIDATE(id < rows, ExitCode::bad_data, where, ": token id ", id,
             " is outside the model's vocabulary of ", rows, ": correct it");
  }
}

std::string date_for(const std::filesystem::path& output, const ReadingOptions& reading,
                     Existing existing) {
  if (!reading.date.empty()) return reading.date;
  const std::string earlier = setting_of_earlier_run(output, "date", existing);
  return earlier.empty() ? text::today() : earlier;
}

void add_reading(ToolJob& job, const ReadingOptions& reading) {
  job.emplace_back("chat-template-kwargs", reading.chat_template_kwargs);
  job.emplace_back("date", reading.date);
  job.emplace_back("special-tokens", config::to_string(reading.special_tokens));
}

}  // namespace trireme::tools
