#include "trireme/data/score_input.hpp"

#include <array>

#include "data/record.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {
namespace {

FinishReason read_finish_reason(const Record& record) {
  const std::string word = record.text("finish_reason");
  for (const auto reason : {FinishReason::stop, FinishReason::length, FinishReason::stop_string}) {
    if (word == to_string(reason)) return reason;
  }
  record.fail("`finish_reason` is \"" + word +
              "\", expected stop, length or stop_string: correct it");
}

// Fields that would change what is scored, and that `score` does not take.
void refuse_others(const Record& record) {
  for (const char* key : {"chosen", "rejected"}) {
    if (record.find(key) != nullptr)
      record.fail(base::text("`", key,
                             "` is not known to score: write one line for each answer, with "
                             "`prompt` (or `messages`) and `response`"));
  }
  if (const text::OrderedJson* flag = record.find("add_generation_prompt");
      flag != nullptr && *flag != false) {
    record.fail(
        "`add_generation_prompt` opens an answer, but score reads finished ones: remove it");
  }
}

text::Message read_response(const Record& record) {
  if (!record.has_turns("response")) return {"assistant", record.text("response"), ""};
  auto turns = record.messages("response");
  if (turns.size() != 1 || turns.front().role != "assistant")
    record.fail(
        "`response` is not one turn of the assistant: write one line for each answer, with the "
        "turns before it in `messages`");
  return std::move(turns.front());
}

void read_answer(const Record& record, ScoreInput& out) {
  if (record.find("response") != nullptr) {
    out.answer = read_response(record);
    return;
  }
  if (record.find("completion") != nullptr)
    record.fail("`completion` is not known to score: name the answer `response`");
  if (out.messages.empty())
    record.fail(
        "`prompt` without `response`: add the response whose log-probabilities are wanted, or name "
        "a text that is scored as it stands `text`");
  if (out.messages.back().role != "assistant")
    record.fail("`messages` ends with a turn of \"" + out.messages.back().role +
                "\" and there is no `response`: end it with the assistant's turn, or add "
                "`response`");
  out.whole_chat = true;
  out.answer = std::move(out.messages.back());
  out.messages.pop_back();
  if (out.messages.empty())
    record.fail("`messages` has nothing before the answer: add the turns that it answers");
}

ScoreInput read_score_input(const Record& record) {
  refuse_others(record);
  InputRecord input = read_input(record);
  ScoreInput out;
  out.where = std::move(input.where);
  const bool has_prompt = record.find("prompt") != nullptr || !input.messages.empty();
  if (has_prompt) {
    out.messages = std::move(input.messages);
    out.variables = std::move(input.variables);
    if (out.messages.empty()) out.prompt = std::move(input.text).value_or("");
    read_answer(record, out);
    if (record.find("finish_reason") != nullptr) out.finish_reason = read_finish_reason(record);
    return out;
  }
  for (const char* key : {"response", "finish_reason"}) {
    if (record.find(key) != nullptr)
      record.fail(base::text("`", key,
                             "` belongs to an answer, but there is no prompt: add "
                             "`prompt` or `messages` (`text` and `input_ids` are scored as they "
                             "stand)"));
  }
  out.text = std::move(input.text);
  out.ids = std::move(input.ids);
  return out;
}

}  // namespace

ScoredTokens ScoreInput::tokens(const text::Tokenizer& tokenizer,
                                text::SpecialTokens special) const {
  try {
    if (!answer) {
      InputRecord plain;
      plain.text = text;
      plain.ids = ids;
      return {plain.encode(tokenizer, special), 1, text.value_or(""), 0};
    }
    const bool cut = finish_reason == FinishReason::length;
    const Prompt asked = messages.empty() ? encode_prompt(tokenizer, prompt, special)
                                          : encode_prompt(tokenizer, messages, variables);
    std::optional<AnsweredPrompt> made;
    if (messages.empty() || cut) {
      made = answer_text(tokenizer, asked, text::content_text(*answer),
                         cut ? AnswerEnd::cut : AnswerEnd::ended);
    } else {
      const std::string rendered =
          render_answered(tokenizer, messages, std::array{*answer}, variables);
      made = answer_chat(tokenizer, asked, rendered);
      VALIDATE(made || whole_chat, ExitCode::bad_data,
               "the chat template renders the prompt differently once the response follows, so its "
               "tokens are unknown: give the whole chat as `messages`");
      if (!made) return {until_end(tokenizer, tokenizer.encode(rendered), 0), 1, asked.text, 0};
    }
    const int64_t first = whole_chat ? 1 : made->prompt_length;
    return {std::move(made->ids), first, asked.text, made->prompt_length};
  } catch (const UserError& error) { throw UserError(error.code(), where + ": " + error.what()); }
}

std::vector<ScoreInput> read_score_inputs(const std::filesystem::path& file) {
  std::vector<ScoreInput> inputs;
  JsonlReader lines(file);
  while (const auto line = lines.next())
    inputs.push_back(read_score_input(Record(*line, file.string(), lines.line())));
  return inputs;
}

}  // namespace trireme::data
