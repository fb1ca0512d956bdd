#include "trireme/data/answer.hpp"

#include <algorithm>
#include <array>

#include "data/record.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

size_t common_length(std::string_view a, std::string_view b) {
  const auto [end, ignored] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  auto length = static_cast<size_t>(end - a.begin());
  while (length > 0 && length < a.size() && (static_cast<uint8_t>(a[length]) & 0xC0) == 0x80)
    --length;  // not inside a character
  return length;
}

text::OrderedJson other_fields(const text::Message& message) {
  return message.extra.empty()
             ? text::OrderedJson::object()
             : text::parse_record(message.extra, {"a message's fields", 1}, text::Numbers::exact);
}

}  // namespace

Prompt encode_prompt(const text::Tokenizer& tokenizer, std::string text,
                     text::SpecialTokens special) {
  Prompt prompt;
  if (tokenizer.has_special_tokens(text)) prompt.remarks |= bit(Remark::special_tokens);
  prompt.ids = tokenizer.encode(text, special);
  prompt.text = std::move(text);
  return prompt;
}

text::GenerationPrompt opening_after(std::span<const text::Message> prompt) {
  return !prompt.empty() && prompt.back().role == "assistant" ? text::GenerationPrompt::continued
                                                              : text::GenerationPrompt::with;
}

std::string render_prompt(const text::Tokenizer& tokenizer, std::span<const text::Message> messages,
                          const std::string& variables) {
  return tokenizer.render_chat(messages, opening_after(messages), variables);
}

Prompt encode_prompt(const text::Tokenizer& tokenizer, std::vector<text::Message> messages,
                     std::string variables) {
  Prompt prompt;
  prompt.text = render_prompt(tokenizer, messages, variables);
  prompt.ids = tokenizer.encode(prompt.text);
  if (opening_after(messages) == text::GenerationPrompt::continued)
    prompt.remarks |= bit(Remark::continued);
  prompt.messages = std::move(messages);
  prompt.variables = std::move(variables);
  return prompt;
}

AnsweredPrompt answer_text(const text::Tokenizer& tokenizer, const Prompt& prompt,
                           std::string_view response, AnswerEnd end) {
  AnsweredPrompt out{prompt.ids, static_cast<int64_t>(prompt.ids.size())};
  append(out.ids, tokenizer.encode(response));
  if (end == AnswerEnd::cut) return out;
  const text::TokenId eos = required_eos(tokenizer);
  const bool has_one = out.ids.size() > prompt.ids.size() && out.ids.back() == eos;
  if (!has_one) out.ids.push_back(eos);
  return out;
}

std::vector<text::Message> with_answer(std::vector<text::Message> messages,
                                       std::span<const text::Message> answer) {
  const bool continues = !messages.empty() && messages.back().role == "assistant" &&
                         !answer.empty() && answer.front().role == "assistant";
  if (continues) {
    text::Message& open = messages.back();
    text::OrderedJson fields = other_fields(open);
    fields.update(other_fields(answer.front()));
    fields.erase("content");
    open.content = text::content_text(open) + text::content_text(answer.front());
    open.extra = fields.empty() ? "" : text::dump(fields);
    answer = answer.subspan(1);
  }
  messages.insert(messages.end(), answer.begin(), answer.end());
  return messages;
}

std::string render_answered(const text::Tokenizer& tokenizer,
                            std::span<const text::Message> messages,
                            std::span<const text::Message> answer, const std::string& variables) {
  return tokenizer.render_chat(with_answer({messages.begin(), messages.end()}, answer),
                               text::GenerationPrompt::without, variables);
}

std::optional<size_t> opening_length(const text::Tokenizer& tokenizer, const Prompt& prompt,
                                     std::string_view rendered) {
  if (rendered.starts_with(prompt.text)) return prompt.text.size();
  if (opening_after(prompt.messages) == text::GenerationPrompt::continued) return std::nullopt;
  const std::string closed =
      tokenizer.render_chat(prompt.messages, text::GenerationPrompt::without, prompt.variables);
  if (!rendered.starts_with(closed)) return std::nullopt;
  // A content that begins as the opening continues does not count as its beginning: two others show
  // where contents begin.
  const auto with_content = [&](const char* content) {
    const std::array answer{text::Message{"assistant", content, ""}};
    return render_answered(tokenizer, prompt.messages, answer, prompt.variables);
  };
  const size_t header = common_length(with_content("0"), with_content("1"));
  return std::max(closed.size(), std::min(common_length(prompt.text, rendered), header));
}

std::optional<std::string> render_cut(const text::Tokenizer& tokenizer,
                                      std::span<const text::Message> messages,
                                      const text::Message& answer, const std::string& variables) {
  std::string rendered = render_answered(tokenizer, messages, {&answer, 1}, variables);
  const std::string text = text::content_text(answer);
  const size_t found = text.empty() ? std::string::npos : rendered.rfind(text);
  if (found == std::string::npos) return std::nullopt;
  rendered.resize(found + text.size());
  return rendered;
}

std::optional<AnsweredPrompt> answer_chat(const text::Tokenizer& tokenizer, const Prompt& prompt,
                                          std::string_view rendered) {
  const auto opening = opening_length(tokenizer, prompt, rendered);
  if (!opening) return std::nullopt;
  AnsweredPrompt out{tokenizer.encode(rendered.substr(0, *opening)), 0};
  const size_t first = out.ids.size();
  out.prompt_length = static_cast<int64_t>(first);
  append(out.ids, tokenizer.encode(rendered.substr(*opening)));
  out.ids = until_end(tokenizer, std::move(out.ids), first);
  return out;
}

std::vector<text::TokenId> until_end(const text::Tokenizer& tokenizer,
                                     std::vector<text::TokenId> ids, size_t first) {
  const auto ends = [&](text::TokenId id) { return is_end_token(tokenizer, id); };
  size_t length = ids.size();
  while (length > first && !ends(ids[length - 1])) --length;
  if (length == first) return ids;
  while (length > first + 1 && ends(ids[length - 2])) --length;
  ids.resize(length);
  return ids;
}

bool is_end_token(const text::Tokenizer& tokenizer, text::TokenId id) {
  return std::ranges::binary_search(tokenizer.eos_ids(), id);
}

text::TokenId required_eos(const text::Tokenizer& tokenizer) {
  VALIDATE(
      tokenizer.eos_id().has_value(), ExitCode::bad_data,
      "the tokenizer names no eos_token, which ends a response: add it to tokenizer_config.json");
  return *tokenizer.eos_id();
}

}  // namespace trireme::data
