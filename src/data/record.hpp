// One record of a data set: a JSON object with its place, and the rules that all sets share.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trireme/data/answer.hpp"
#include "trireme/data/messages.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/text/json_text.hpp"

namespace trireme::data {

class Record {
 public:
  Record(std::string_view text, const std::string& file, int64_t line);

  const std::string& where() const { return where_; }  // "file:line"
  [[noreturn]] void fail(const std::string& problem) const;

  // nullptr when the key is absent or null
  const text::OrderedJson* find(const std::string& key) const;
  std::string text(const std::string& key) const;  // a text that must be there
  std::optional<double> number(const std::string& key) const;
  std::vector<text::Message> messages(const std::string& key) const;
  bool has_turns(const std::string& key) const;  // a list of messages, or one message
  // The record's columns `tools`, `documents` and `chat_template_kwargs` for the chat template: a
  // JSON object, or "" where there are none.
  std::string variables() const;
  // The fields whose keys are not in `known`, as a JSON object.
  std::string others(const std::set<std::string>& known) const;

 private:
  std::string where_;
  text::OrderedJson json_;
};

// The column that holds a chat: messages, the prompt's when that is a list, or ShareGPT's
// `conversations`; "": none. Throws UserError(bad_data) when two do.
std::string chat_column(const Record& record, const RecordKeys& keys);
// The chat there.
std::vector<text::Message> read_chat(const Record& record, const RecordKeys& keys);
// The conversation with the deck's system turn in front when it has none.
std::vector<text::Message> with_system(std::vector<text::Message> messages,
                                       const SetOptions& options);
// The prompt of a record: a conversation (a chat, or a prompt in the form user_turn) or plain text.
Prompt read_prompt(const Record& record, const SetOptions& options,
                   const text::Tokenizer& tokenizer);
Prompt parse_prompt(const Record& record, const SetOptions& options);  // the same, not encoded

// A line of `generate`, `score` and `tokenize`.
InputRecord read_input(const Record& record);

// Counts and refuses what cannot be used.
class Admission {
 public:
  Admission(const SetOptions& options, SetCounts& counts);
  // Whether a record with this many tokens is kept. `what` is "prompt" or "sequence". Throws
  // UserError(bad_data) under Unusable::stop.
  bool admit(const Record& record, size_t tokens, const char* what, Remarks remarks = 0);

 private:
  const SetOptions& options_;
  SetCounts& counts_;
};

// Appends `more` to `ids`.
void append(std::vector<text::TokenId>& ids, const std::vector<text::TokenId>& more);
// Throw UserError: configuration when no file is named, bad_data when no row is left.
void check_files(const SetOptions& options);
void check_rows(const SetOptions& options, const SetCounts& counts);

}  // namespace trireme::data
