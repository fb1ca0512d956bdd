#include "trireme/reward/reading.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "trireme/base/error.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/data/answer.hpp"
#include "trireme/model/adapter_files.hpp"

namespace trireme::reward {
namespace {

using Ids = std::vector<int32_t>;

bool is_cut(const Request& request) {
  return request.finish_reason == FinishReason::length ||
         request.finish_reason == FinishReason::unfinished;
}

Ids joined(Ids ids, const Ids& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

}  // namespace

Reading::Reading(text::Tokenizer own, text::Tokenizer policy, int64_t vocabulary,
                 std::string source)
    : own_(own.with_template_inputs(policy.template_inputs())),
      policy_(std::move(policy)),
      vocabulary_(vocabulary),
      source_(std::move(source)),
      same_encoding_(own_.encodes_like(policy_)) {}

ReadTokens Reading::read(const Request& request) const {
  try {
    return request.messages.empty() ? read_text(request) : read_chat(request);
  } catch (const UserError& error) {
    throw UserError(error.code(), base::text("reward source ", source_, ", ", described(request),
                                             ": ", error.what()));
  }
}

// The policy's tokens without the one that ended them.
Ids Reading::without_stop_token(const Request& request) const {
  Ids ids = request.ids;
  const bool stopped = request.finish_reason == FinishReason::stop &&
                       std::ssize(ids) > request.prompt_len &&
                       (policy_.is_special(ids.back()) || data::is_end_token(policy_, ids.back()));
  if (stopped) ids.pop_back();
  return ids;
}

// With the special tokens inside it, which are part of what the policy said.
std::string Reading::response_of(const Request& request) const {
  if (request.encoded) return request.response;
  const Ids ids = without_stop_token(request);
  return policy_.decode(std::span(ids).subspan(static_cast<size_t>(request.prompt_len)));
}

bool Reading::has_rows(const Request& request) const {
  return std::ranges::all_of(request.ids, [&](int32_t id) { return id < vocabulary_; });
}

bool Reading::can_take(const Request& request) const {
  return same_encoding_ && !request.encoded && has_rows(request);
}

ReadTokens Reading::read_text(const Request& request) const {
  const bool written = can_take(request);
  if (written && is_cut(request)) return {request.ids, ReadAs::written};
  if (written) {
    Ids ids = without_stop_token(request);
    ids.push_back(data::required_eos(own_));
    return {std::move(ids), ReadAs::written};
  }
  VALIDATE(!request.prompt.empty() || !request.response.empty(), ExitCode::bad_data,
           "the reward model has another tokenizer than the model, whose token ids mean nothing to "
           "it: give texts or messages");
  const auto end = is_cut(request) ? data::AnswerEnd::cut : data::AnswerEnd::ended;
  return {
      data::answer_text(own_, data::encode_prompt(own_, request.prompt), response_of(request), end)
          .ids,
      ReadAs::encoded_again};
}

void Reading::require_template() const {
  VALIDATE(own_.has_chat_template() || same_encoding_, ExitCode::bad_data,
           "the reward model has no chat template, and its tokenizer is another one than the "
           "policy's, so it cannot read chats: add chat_template.jinja to its folder");
}

void Reading::check_chat(std::span<const text::Message> messages,
                         const std::string& variables) const {
  try {
    require_template();
    if (own_.has_chat_template()) data::render_prompt(own_, messages, variables);
  } catch (const UserError& error) {
    throw UserError(error.code(), base::text("reward source ", source_, ": ", error.what()));
  }
}

ReadTokens Reading::read_chat(const Request& request) const {
  require_template();
  if (!own_.has_chat_template()) return {request.ids, ReadAs::policy_template};
  const std::string response = response_of(request);
  const text::Message answer{"assistant", response, request.answer_fields};
  if (is_cut(request)) return read_cut_chat(request, answer);
  const std::string rendered =
      data::render_answered(own_, request.messages, std::array{answer}, request.variables);
  const std::string said = request.prompt + response;
  if (can_take(request) && rendered.starts_with(said)) {
    const Ids end = data::until_end(own_, own_.encode(rendered.substr(said.size())), 0);
    if (!end.empty() && data::is_end_token(own_, end.back()))
      return {joined(without_stop_token(request), end), ReadAs::written};
  }
  auto answered = data::answer_chat(
      own_, data::encode_prompt(own_, request.messages, request.variables), rendered);
  if (answered) return {std::move(answered->ids), ReadAs::encoded_again};
  return {data::until_end(own_, own_.encode(rendered), 0), ReadAs::encoded_again};
}

// After the prompt that the policy had what it wrote; else up to where the template closes the
// turn.
ReadTokens Reading::read_cut_chat(const Request& request, const text::Message& answer) const {
  const data::Prompt prompt = data::encode_prompt(own_, request.messages, request.variables);
  const bool same_prompt = prompt.text == request.prompt;
  if (same_prompt && can_take(request)) return {request.ids, ReadAs::written};
  std::string rest = text::content_text(answer);
  const auto rendered = same_prompt
                            ? std::nullopt
                            : data::render_cut(own_, request.messages, answer, request.variables);
  if (rendered && rendered->starts_with(prompt.text)) rest = rendered->substr(prompt.text.size());
  return {joined(prompt.ids, own_.encode(rest)), ReadAs::encoded_again};
}

namespace {

void check_share(const config::Options& options, const config::Strings& files,
                 const text::Tokenizer& policy, const data::PromptSet& prompts, int64_t first,
                 int64_t step) {
  const std::vector<std::string> names = source_names(options);
  for (size_t i = 0; i < options.reward.source.size(); ++i) {
    const config::RewardSource& source = options.reward.source[i];
    if (source.kind != config::RewardKind::model) continue;
    std::optional<Reading> reading;
    for (int64_t row = first; row < prompts.size(); row += step) {
      const data::PromptRecord& prompt = prompts[row];
      if (prompt.messages.empty()) continue;
      if (!reading)
        reading.emplace(text::Tokenizer::load(model::tokenizer_folder(source.path)), policy,
                        policy.vocab_size(), names[i]);
      try {
        reading->check_chat(prompt.messages, prompt.variables);
      } catch (const UserError& error) {
        throw UserError(error.code(), base::text(files[static_cast<size_t>(prompt.origin.file)],
                                                 ":", prompt.origin.line, ": ", error.what()));
      }
    }
  }
}

}  // namespace

void check_chats(const config::Options& options, const config::Strings& files,
                 const text::Tokenizer& policy, const data::PromptSet& prompts) {
  check_share(options, files, policy, prompts, 0, 1);
}

void require_readable_chats(const config::Options& options, const config::Strings& files,
                            const text::Tokenizer& policy, const data::PromptSet& prompts,
                            const comm::CommView& world) {
  comm::fail_together(
      world, [&] { check_share(options, files, policy, prompts, world.rank(), world.size()); });
}

}  // namespace trireme::reward
