// The files of a tokenizer, read: `tokenizer.json` into the parts that encode and decode, the small
// files beside it into the names of special tokens and the chat template.
#pragma once

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "text/added_tokens.hpp"
#include "text/bpe.hpp"
#include "text/decoder.hpp"
#include "text/normalizer.hpp"
#include "text/pre_tokenizer.hpp"
#include "text/unigram.hpp"
#include "text/vocabulary.hpp"
#include "trireme/text/chat_template.hpp"
#include "trireme/text/json_text.hpp"

namespace trireme::text {

// Turns words into tokens.
using WordModel = std::variant<Bpe, Unigram>;
// Its words are bytes, for a vocabulary in the byte-level alphabet, or texts.
enum class Units { bytes, characters };
// Reads the `model` object and fills the vocabulary.
WordModel read_word_model(const Json& model, Vocabulary& vocabulary, Units units,
                          const std::string& where);

// What `tokenizer.json` says.
struct TokenizerModel {
  Vocabulary vocabulary;
  WordModel words;
  PreTokenizer pre_tokenizer;
  Normalizer normalizer;
  Decoder decoder;
  std::vector<AddedToken> added;
  std::vector<TokenId> prefix;  // put in front by the post-processor
  std::vector<TokenId> suffix;  // and behind
  uint64_t rules = 0;           // encoding_rules() of the file
};
TokenizerModel read_tokenizer_json(const Json& json, const std::string& file);

// A digest of what the file says about how texts become tokens, beside the vocabulary and the added
// tokens: model, merges, normaliser, pre-tokeniser. Equal for files that say the same in another
// way: another order of keys, merges as texts or lists, defaults written out, sequences in
// sequences. A part of an unknown type counts as it is written.
uint64_t encoding_rules(const Json& json);

// The files beside it, as far as they exist (null otherwise).
struct SideFiles {
  std::string folder;  // for messages
  Json tokenizer_config;
  Json special_tokens_map;
  Json generation_config;       // or the model's config.json: only eos_token_id is read
  std::string generation_file;  // which of the two
  std::optional<std::string> template_file_text;  // chat_template.jinja
};
SideFiles read_side_files(const std::string& folder);

struct SpecialTokenNames {
  std::optional<TokenId> bos, eos, pad;
  std::vector<TokenId> eos_ids;              // ascending
  std::map<std::string, std::string> texts;  // "bos_token" -> its text, for chat templates
  std::optional<ChatTemplate> chat_template;
  std::string template_error;  // why there is none although the model has one; "" otherwise
};
// Adds the special tokens that only the side files name to `model`, as HF does when it loads a
// tokenizer.
SpecialTokenNames read_special_tokens(const SideFiles& files, TokenizerModel& model);

// One added token of `tokenizer.json` or of `added_tokens_decoder`, put into the vocabulary.
AddedToken read_added_token(const Json& json, int64_t id, Vocabulary& vocabulary,
                            const std::string& where);

// An integer, for messages `name`; throws UserError(bad_data) for anything else.
int64_t read_integer(const Json& json, const std::string& name, const std::string& where);

// The two files that HF needs, from the parts that a GGUF file has.
Json tokenizer_json_of(const TokenizerParts& parts);
Json tokenizer_config_of(const TokenizerParts& parts);

}  // namespace trireme::text
