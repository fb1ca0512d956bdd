#include "rollout/conversation.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::rollout {
namespace {

bool is_open_turn(const std::vector<text::Message>& messages) {
  return !messages.empty() && messages.back().role == "assistant";
}

}  // namespace

Conversation::Conversation(const text::Tokenizer& tokenizer, const std::vector<int32_t>& end_ids,
                           const data::PromptRecord& prompt, std::string where)
    : tokenizer_(&tokenizer),
      end_ids_(&end_ids),
      prompt_(&prompt),
      where_(std::move(where)),
      messages_(prompt.messages) {}

void Conversation::require_template(Messages messages) const {
  VALIDATE(messages.empty() || !messages_.empty(), ExitCode::bad_data, where_,
           ": the environment answers with messages, but the prompt is a plain text (only a chat's "
           "template says how messages are written): answer with \"text\", or make the prompt a "
           "chat (data.messages_key, data.apply_chat_template)");
}

std::string Conversation::render(text::GenerationPrompt prompt) const {
  return tokenizer_->render_chat(messages_, prompt, prompt_->variables);
}

std::vector<text::TokenId> Conversation::open(Messages messages, const std::string& text) {
  require_template(messages);
  std::vector<text::TokenId> ids = prompt_->ids;
  if (!messages.empty()) {
    messages_.insert(messages_.end(), messages.begin(), messages.end());
    ids = tokenizer_->encode(render(is_open_turn(messages_) ? text::GenerationPrompt::continued
                                                            : text::GenerationPrompt::with));
  }
  if (text.empty()) return ids;
  rendered_ = false;
  const auto more = tokenizer_->encode(text);
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

std::string Conversation::add_turn(std::span<const text::TokenId> ids, FinishReason reason) {
  last_ = reason;
  const bool has_end = reason == FinishReason::stop && !ids.empty();
  std::string text = tokenizer_->decode(ids.first(ids.size() - has_end), text::Skip::nothing);
  if (messages_.empty()) return text;
  if (is_open_turn(messages_)) {  // the prompt began it, or a text was put into it
    messages_.back().content = text::content_text(messages_.back()) + text;
  } else {
    messages_.push_back({.role = "assistant", .content = text, .extra = {}});
  }
  return text;
}

std::vector<Conversation::Mark> Conversation::end_tokens(const std::string& rendered) const {
  std::vector<Mark> marks;
  for (const text::TokenId id : *end_ids_) {
    const std::string token = tokenizer_->id_to_token(id).value_or("");
    if (token.empty()) continue;
    for (size_t at = 0; (at = rendered.find(token, at)) != std::string::npos; at += token.size())
      marks.push_back({at, at + token.size()});
  }
  std::ranges::sort(marks, {}, &Mark::begin);
  return marks;
}

// The template renders the same turns in both texts, so the last end token of the one without the
// observation has the same number in the other one. Where turns have no end tokens, the turn itself
// ends at the same place.
std::string Conversation::suffix_of(Messages observation) {
  const std::string before = render(text::GenerationPrompt::without);
  const size_t number = end_tokens(before).size();
  const std::string inside = number == 0 ? render(text::GenerationPrompt::continued) : "";
  messages_.insert(messages_.end(), observation.begin(), observation.end());
  const std::string after = render(text::GenerationPrompt::with);
  const std::vector<Mark> marks = end_tokens(after);
  if (number == 0 && after.starts_with(inside)) return after.substr(inside.size());
  VALIDATE(number > 0 && number <= marks.size(), ExitCode::bad_data, where_,
           ": the model's chat template does not show where an observation begins (the "
           "conversation has ",
           number, " end tokens without it and ", marks.size(),
           " with it): answer with \"text\", or use a template that ends each turn with an end "
           "token");
  const Mark& mark = marks[number - 1];
  return after.substr(last_ == FinishReason::stop ? mark.end : mark.begin);
}

std::vector<text::TokenId> Conversation::observe(Messages messages, const std::string& text) {
  require_template(messages);
  std::string suffix = text;
  if (messages.empty()) {
    rendered_ = false;
    if (!messages_.empty()) messages_.back().content = text::content_text(messages_.back()) + text;
  } else {
    suffix = suffix_of(messages);
  }
  return tokenizer_->encode(suffix);
}

bool Conversation::is_rendered_alike(std::span<const text::TokenId> ids) const {
  if (messages_.empty() || !rendered_) return true;
  const auto whole = tokenizer_->encode(render(text::GenerationPrompt::without));
  return whole.size() >= ids.size() && std::ranges::equal(ids, std::span(whole).first(ids.size()));
}

}  // namespace trireme::rollout
