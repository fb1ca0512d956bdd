// Tokenizers of the Hugging Face kind (`tokenizer.json`): BPE on bytes as of GPT-2, SmolLM2, Llama
// 3, Qwen2 and their relatives, BPE on characters as of Llama 2, Mistral and Gemma, and Unigram as
// of T5, each with bytes for characters that have no token where the file says so. Ids and texts
// equal those of the Python package `tokenizers`; a feature that this reader does not
// know is refused by the name it has in the file.
//
// Character classes are those of PCRE2's Unicode version (10.42: Unicode 14) and NFC that of
// utf8proc (2.8: Unicode 15), so characters that are younger than either side's tables may be split
// or composed differently than by a given HF release.
//
// A Tokenizer is immutable and cheap to copy; every member function may be called from several
// threads at once. Nothing here is collective.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/text/chat_template.hpp"

namespace trireme::text {

using TokenId = int32_t;

// Whether encode() applies the post-processor (Llama 3: <|begin_of_text|> in front), as HF's
// add_special_tokens: not, always, or but for tokens with which the text begins or ends anyway.
enum class SpecialTokens { none, added, once };
// Whether decode() leaves tokens marked `special` out, as HF's skip_special_tokens.
enum class Skip { nothing, special };

// A GGUF file's description of its tokenizer; `model` reads it, `data` knows what it means.
struct TokenizerParts {
  std::string source;          // file, for messages
  std::string model = "gpt2";  // tokenizer.ggml.model; others are refused
  std::string pre_tokenizer;   // tokenizer.ggml.pre: gpt-2, smollm, llama-bpe, qwen2
  std::vector<std::string>
      tokens;  // index = id; ordinary tokens in the byte-level alphabet, others as text
  std::vector<std::string> merges;  // "left right", in order of rank
  std::vector<int32_t>
      types;  // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused; empty = all normal
  std::optional<TokenId> bos, eos, pad, unk;
  std::optional<bool> add_bos;  // nullopt: as the pre-tokenizer's family does (llama-bpe adds it)
  std::optional<bool> add_eos;
  std::string chat_template;  // "" = none
};

// Between the tokens of one text that is decoded: bytes that may still become a character, what has
// been seen, and blanks that count only if something follows.
struct DecodeState {
  std::string held;
  bool begun = false;
  int64_t stripped = 0;
  std::string tail;
};

class Tokenizer {
 public:
  // Reads `tokenizer.json` and, where they exist, `tokenizer_config.json`,
  // `special_tokens_map.json`, `chat_template.jinja` and `generation_config.json` (else
  // `config.json`) of a model folder. Throws UserError: input_missing without tokenizer.json,
  // bad_data (with file and the name of the part) otherwise.
  static Tokenizer load(const std::filesystem::path& folder);
  // The same tokenizer that write_tokenizer() would export and load() would read back.
  static Tokenizer from_parts(const TokenizerParts& parts);

  // Token ids of a text. Throws UserError(bad_data) when the text is not UTF-8, naming the byte.
  std::vector<TokenId> encode(std::string_view text,
                              SpecialTokens special = SpecialTokens::none) const;
  // Text of ids. Ids outside the vocabulary (padding rows of a model) give nothing; each maximal
  // invalid part of UTF-8 becomes U+FFFD. `clean_up_tokenization_spaces` is never applied: it is
  // lossy.
  std::string decode(std::span<const TokenId> ids, Skip skip = Skip::nothing) const;
  // The same token by token: the text that is certain with this one, and the rest at the end.
  void decode_next(TokenId id, Skip skip, DecodeState& state, std::string& out) const;
  void decode_end(DecodeState& state, std::string& out) const;

  // A token as checkpoints know it: its bytes in the byte-level alphabet, or its text where it has
  // none. Empty outside the vocabulary.
  std::string_view token_bytes(TokenId id) const;
  // The token as it stands in the file; nullopt outside the vocabulary.
  std::optional<std::string> id_to_token(TokenId id) const;
  std::optional<TokenId> token_to_id(std::string_view token) const;
  // One more than the largest id.
  TokenId vocab_size() const;
  bool is_special(TokenId id) const;

  std::optional<TokenId> bos_id() const;
  std::optional<TokenId> eos_id() const;
  std::optional<TokenId> pad_id() const;
  // Ids that end a generation: those of generation_config.json (else config.json) and the
  // tokenizer's own, ascending.
  std::span<const TokenId> eos_ids() const;
  // Whether both give every text the same ids: the same vocabulary, merges, normaliser,
  // pre-tokeniser, added tokens and post-processor, however their files write it. False where that
  // cannot be told from the files.
  bool encodes_like(const Tokenizer& other) const;
  // A digest of all that texts and chats are read by: what encodes_like() compares, end tokens, the
  // chat template with the special tokens that it names. Equal for files that say the same in
  // another way.
  uint64_t reading_digest() const;
  // Whether no id means one token here and another one there; either may have ids of its own.
  bool shares_ids_with(const Tokenizer& other) const;
  // Throws UserError(bad_data) when a token id needs a row that a model of `rows` vocabulary rows
  // does not have.
  void check_model(int64_t rows) const;

  // Whether the text begins or ends with what SpecialTokens::added puts there: it was rendered
  // beforehand.
  bool has_special_tokens(std::string_view text) const;

  bool has_chat_template() const;
  // Whether the model's template calls strftime_now.
  bool template_asks_for_date() const;
  // The same tokenizer, whose template sees these variables, but for those that a call gives, and
  // this date. Both have passed check_template_variables() and check_date().
  Tokenizer with_template_inputs(TemplateInputs inputs) const;
  const TemplateInputs& template_inputs() const { return inputs_; }
  // The model's own template over `messages`, as HF's apply_chat_template(tokenize=False) with
  // `variables` (JSON object; "": none) as its keyword arguments. Throws UserError(bad_data) when
  // the model has none or the template refuses the messages.
  std::string render_chat(std::span<const Message> messages, GenerationPrompt prompt,
                          const std::string& variables = "") const;
  // render_chat, encoded without the post-processor (the template writes its own special tokens).
  std::vector<TokenId> encode_chat(std::span<const Message> messages, GenerationPrompt prompt,
                                   const std::string& variables = "") const;

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
  TemplateInputs inputs_;
};

// Throws UserError(code) with `name` when the text is not a JSON object whose keys may be variables
// of a chat template (HF's own arguments, as `tokenize`, may not).
void check_template_variables(std::string_view json, const std::string& name, ExitCode code);
// The members of both objects, those of `over` where both have one; "" is an object without any.
std::string merged_variables(const std::string& under, const std::string& over);

// Text of a growing sequence. Bytes that may still become a character are held back; the
// concatenation of all returned pieces and finish() equals Tokenizer::decode of all ids.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(Tokenizer tokenizer, Skip skip = Skip::special);
  // The text that became certain with this token; may be empty.
  std::string push(TokenId id);
  // Returns the rest and resets the decoder.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  Skip skip_;
  DecodeState state_;
};

// Writes `tokenizer.json` and `tokenizer_config.json` into an existing folder; HF's `tokenizers`
// loads them with the same ids. Throws UserError(bad_data) when the parts name a pre-tokenizer that
// is not known, io_error on write.
void write_tokenizer(const TokenizerParts& parts, const std::filesystem::path& folder);

}  // namespace trireme::text
