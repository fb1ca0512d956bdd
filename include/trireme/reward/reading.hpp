// The tokens that a reward model reads of a prompt and an answer.
//
// They are those that `rm` trains on (data/answer.hpp), by the reward model's own tokenizer and
// chat template. The policy's tokens are taken where they are tokens of just that text: where its
// tokenizer gives texts the same ids (Tokenizer::encodes_like) and, for a chat, where the reward
// model's template renders the same prompt and puts nothing before the answer. So an answer that
// the policy wrote in an unusual split of tokens, or with bytes that are no text, is read as it was
// written. An ended answer ends with the reward model's own end token, a cut one with none.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/config/options.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::reward {

// How the tokens came about.
enum class ReadAs : uint8_t {
  written,          // the policy's tokens
  encoded_again,    // the texts, by the reward model's own tokenizer and template
  policy_template,  // a chat as the policy's template renders it: the reward model has none
};

struct ReadTokens {
  std::vector<int32_t> ids;
  ReadAs how = ReadAs::written;
};

class Reading {
 public:
  // `own`: of the reward model, which has `vocabulary` rows; `policy`: of who wrote the requests'
  // ids. `source` names the reward source in messages.
  Reading(text::Tokenizer own, text::Tokenizer policy, int64_t vocabulary, std::string source);

  // Local. Throws UserError(bad_data): a template that refuses the conversation, no end token, a
  // chat for a reward model with another tokenizer and no template, token ids without a text for
  // one with another tokenizer.
  ReadTokens read(const Request& request) const;
  // Whether it reads answers to this chat: throws what read() would, before there is an answer.
  void check_chat(std::span<const text::Message> messages, const std::string& variables) const;

 private:
  void require_template() const;
  ReadTokens read_text(const Request& request) const;
  ReadTokens read_chat(const Request& request) const;
  ReadTokens read_cut_chat(const Request& request, const text::Message& answer) const;
  std::vector<int32_t> without_stop_token(const Request& request) const;
  std::string response_of(const Request& request) const;
  bool has_rows(const Request& request) const;
  bool can_take(const Request& request) const;  // the policy's ids

  text::Tokenizer own_, policy_;
  int64_t vocabulary_;
  std::string source_;
  bool same_encoding_;
};

// Whether the reward models of the deck read answers to the chats of a set, whose files these are.
// check_chats() looks at all of them; require_readable_chats() at a share on each rank, and is
// collective over world. Throw UserError(bad_data) with file:line.
void check_chats(const config::Options& options, const config::Strings& files,
                 const text::Tokenizer& policy, const data::PromptSet& prompts);
void require_readable_chats(const config::Options& options, const config::Strings& files,
                            const text::Tokenizer& policy, const data::PromptSet& prompts,
                            const comm::CommView& world);

}  // namespace trireme::reward
