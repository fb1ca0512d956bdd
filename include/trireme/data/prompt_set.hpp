// Data sets in JSON-lines files, encoded: prompts for PPO, examples for SFT, pairs for reward
// models and DPO, and the input of `generate`, `score` and `tokenize`.
//
// Encoding: texts with the post-processor, as SetOptions::special_tokens says; chats are rendered
// by the model's chat template, then encoded without. A response is encoded on its own, so that the
// ids in front of it are those that generation sees. Loading is deterministic and local: every rank
// that loads the same files has the same rows.
//
// Forms (docs/user/data.md): where a column holds a list it is a chat, in {role, content} or
// ShareGPT's {from, value}; without a chat column `conversations` is one. The columns `tools`,
// `documents` and `chat_template_kwargs` of a chat's record go to the template.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "trireme/data/answer.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::data {

// What to do with a record that is too long or gives no token: leave it out and count it, or stop
// with exit code 65.
enum class Unusable { skip, stop };
// Whether a `prompt` text becomes the user's turn of a conversation (OpenRLHF's
// apply_chat_template).
enum class PromptForm { plain, user_turn };

struct RecordKeys {
  std::string prompt = "prompt";
  std::string messages = "messages";
  std::string label = "label";
  std::string response = "response";
  std::string chosen = "chosen";
  std::string rejected = "rejected";
  std::string margin = "margin";
  std::string text = "text";
  std::string completion = "completion";
};

struct SetOptions {
  std::vector<std::filesystem::path> files;
  RecordKeys keys;
  int64_t max_samples = -1;  // rows kept per file, counted from its start; -1 = all
  int64_t max_tokens = -1;  // of the prompt (PPO) or the whole sequence (SFT, pairs); -1 = no limit
  Unusable unusable = Unusable::skip;
  PromptForm prompt_form = PromptForm::plain;
  text::SpecialTokens special_tokens = text::SpecialTokens::once;  // of texts
  std::string system_prompt;  // put in front of conversations that begin without a system turn;
                              // empty: nothing is
};

// Where a record comes from.
struct Origin {
  int32_t file = 0;  // index into SetOptions::files
  int64_t line = 0;  // from 1
};

struct PromptRecord {
  Origin origin;
  std::string prompt;                   // the text that was encoded (messages: rendered)
  std::vector<text::Message> messages;  // empty when the record has `prompt` and the form is plain
  std::string label;       // text; JSON text when the label is not a string; "" when absent
  std::string label_json;  // JSON text; "" when absent
  std::string extra;       // JSON object with every other field; "{}" when there are none
  std::string variables;   // of messages: JSON object for the chat template; "" when there are none
  std::vector<text::TokenId> ids;
};

// Rows of one set, and what did not become one.
struct SetCounts {
  std::vector<int64_t> rows;  // per file
  int64_t too_long = 0;       // skipped: more than max_tokens
  int64_t empty = 0;          // skipped: no token
  struct Remarked {
    int64_t records = 0;
    std::string first;  // "file:line"
  };
  std::array<Remarked, remark_kinds> remarks;
};
// A line for each remark that the rows of a set brought up.
struct RemarkLine {
  std::string text;
  bool warning = false;
};
std::vector<RemarkLine> describe_remarks(const SetCounts& counts, const SetOptions& options);

// Processes that load the same files at the same time and encode a share of the records each.
// Records of another process are taken only where both have read the same line, so each has what it
// would have alone.
struct EncodingTeam {
  int rank = 0, size = 1;
  // The bytes of all, in order of their ranks; the same number of calls on each. Null: one process.
  std::function<std::vector<std::string>(std::string_view mine)> gather;
};

// All loaders throw UserError: input_missing, bad_data with file:line (a field is missing or has
// another type, a text is not usable and `unusable` is stop, no usable record at all).
class PromptSet {
 public:
  static PromptSet load(const SetOptions& options, const text::Tokenizer& tokenizer,
                        const EncodingTeam& team = {});
  int64_t size() const { return static_cast<int64_t>(records_.size()); }
  const PromptRecord& operator[](int64_t row) const { return records_[static_cast<size_t>(row)]; }
  const SetCounts& counts() const {
    return counts_;
  }  // counts().rows is what SamplerOptions::sizes wants
  // "file:line" of a row, for messages.
  std::string where(int64_t row) const;
  const std::string& file(int32_t number) const { return files_[static_cast<size_t>(number)]; }

 private:
  std::vector<std::string> files_;
  std::vector<PromptRecord> records_;
  SetCounts counts_;
};

// A sequence to imitate. Loss is on the tokens of assistant turns up to and including the one that
// ends the turn.
struct SftExample {
  Origin origin;
  std::vector<text::TokenId> ids;
  std::vector<uint8_t> loss_mask;  // same length; 1 where the token is a target
  Remarks remarks = 0;
  static constexpr auto fields = std::tuple{&SftExample::ids, &SftExample::loss_mask,
                                            &SftExample::remarks};  // that the encoding gives
};

class SftSet {
 public:
  // `messages`, every turn of the assistant a target; or `prompt` and `response`, each a text or
  // turns, with the response as the target (the tokenizer's eos is put after a text); or `text`
  // alone, of which every token but the first is a target (pretraining data).
  static SftSet load(const SetOptions& options, const text::Tokenizer& tokenizer,
                     const EncodingTeam& team = {});
  int64_t size() const { return static_cast<int64_t>(examples_.size()); }
  const SftExample& operator[](int64_t row) const { return examples_[static_cast<size_t>(row)]; }
  const SetCounts& counts() const { return counts_; }

 private:
  std::vector<SftExample> examples_;
  SetCounts counts_;
};

// Two answers to one prompt; `chosen` is the better one.
struct PreferencePair {
  Origin origin;
  std::vector<text::TokenId> chosen, rejected;  // prompt and answer
  // 1 where an assistant's turn of the answer is, up to the last token
  std::vector<uint8_t> chosen_mask, rejected_mask;
  int32_t prompt_length = 0;  // tokens of the prompt at the start of both
  double margin = 0;
  Remarks remarks = 0;
  // That the encoding gives.
  static constexpr auto fields = std::tuple{
      &PreferencePair::chosen,        &PreferencePair::rejected,      &PreferencePair::chosen_mask,
      &PreferencePair::rejected_mask, &PreferencePair::prompt_length, &PreferencePair::margin,
      &PreferencePair::remarks};
};

class PreferenceSet {
 public:
  // `chosen` and `rejected`: answers (a text, or turns that continue it) to `prompt` or `messages`;
  // or whole chats, whose common beginning is the prompt, whatever the record's other columns are
  // (UltraFeedback; as texts "\n\nHuman: ...\n\nAssistant: ...": Anthropic HH). `margin`: number,
  // optional.
  static PreferenceSet load(const SetOptions& options, const text::Tokenizer& tokenizer,
                            const EncodingTeam& team = {});
  int64_t size() const { return static_cast<int64_t>(pairs_.size()); }
  const PreferencePair& operator[](int64_t row) const { return pairs_[static_cast<size_t>(row)]; }
  const SetCounts& counts() const { return counts_; }

 private:
  std::vector<PreferencePair> pairs_;
  SetCounts counts_;
};

// One answer to a prompt, and whether such answers are wanted.
struct LabelledAnswer {
  Origin origin;
  std::vector<text::TokenId> ids;  // prompt and answer
  std::vector<uint8_t> mask;       // 1 where an assistant's turn of the answer is
  int32_t prompt_length = 0;       // tokens of the prompt at the start
  bool wanted = false;
  Remarks remarks = 0;
  static constexpr auto fields =
      std::tuple{&LabelledAnswer::ids, &LabelledAnswer::mask, &LabelledAnswer::prompt_length,
                 &LabelledAnswer::wanted, &LabelledAnswer::remarks};  // that the encoding gives
};

class LabelledSet {
 public:
  // `prompt` or `messages`, `completion` (a text, or turns of the assistant) and `label`, true or
  // false (KTO, as TRL has it).
  static LabelledSet load(const SetOptions& options, const text::Tokenizer& tokenizer,
                          const EncodingTeam& team = {});
  int64_t size() const { return static_cast<int64_t>(answers_.size()); }
  const LabelledAnswer& operator[](int64_t row) const { return answers_[static_cast<size_t>(row)]; }
  const SetCounts& counts() const { return counts_; }
  int64_t longest() const { return longest_; }  // tokens

 private:
  std::vector<LabelledAnswer> answers_;
  SetCounts counts_;
  int64_t longest_ = 0;
};

// One input line of the subcommands `generate`, `score` and `tokenize`. Exactly one of text,
// messages, ids is there.
struct InputRecord {
  std::string where;                              // "file:line"
  std::optional<std::string> text;                // from `prompt` or `text`
  std::vector<text::Message> messages;            // from `messages`, or a list in `prompt`
  std::optional<std::vector<text::TokenId>> ids;  // from `input_ids` or `ids`, checked to be >= 0

  std::optional<std::string> adapter;  // the column `adapter`
  std::string variables;  // of messages: JSON object for the chat template; "" when there are none
  // How messages are rendered: `add_generation_prompt` and `continue_final_message` of the line
  // say; without them as a prompt that is to be answered.
  text::GenerationPrompt opening = text::GenerationPrompt::with;

  // The text of messages. Throws UserError(bad_data) with `where`, as encode() does.
  std::string render(const text::Tokenizer& tokenizer) const;
  // The ids that a model gets for this record.
  std::vector<text::TokenId> encode(const text::Tokenizer& tokenizer,
                                    text::SpecialTokens special = text::SpecialTokens::once) const;
};
std::vector<InputRecord> read_inputs(const std::filesystem::path& file);

// The same, one after the other: memory for one line.
class InputReader {
 public:
  explicit InputReader(const std::filesystem::path& file) : file_(file.string()), lines_(file) {}

  // Goes to the next line; false at the end of the file. Lines that are passed over are not parsed.
  bool advance();
  // What stands there. Throws UserError(bad_data) with file:line.
  InputRecord record() const;

 private:
  std::string file_;
  JsonlReader lines_;
  std::optional<std::string_view> line_;
};

// {"role": ..., "content": ...} list as JSON text, for plugins and logs.
std::string messages_json(std::span<const text::Message> messages);

}  // namespace trireme::data
