#include <algorithm>
#include <limits>

#include "text/byte_alphabet.hpp"
#include "text/tokenizer_files.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {

namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& problem) {
  throw UserError(ExitCode::bad_data, where + ": " + problem);
}

const Json& member(const Json& json, const char* key, const std::string& name,
                   const std::string& where) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  if (found == json.end())
    refuse(where, name + "." + key + " is missing: the file is damaged or no tokenizer.json");
  return *found;
}

bool absent(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null();
}

std::string type_of(const Json& json, const std::string& name, const std::string& where) {
  const Json& type = member(json, "type", name, where);
  if (!type.is_string()) refuse(where, name + ".type is no text: the file is damaged");
  return type.get<std::string>();
}

void read_vocabulary(const Json& model, Vocabulary& vocabulary, const std::string& where) {
  const Json& vocab = member(model, "vocab", "model", where);
  if (!vocab.is_object() || vocab.empty())
    refuse(where, "model.vocab is not an object with tokens: the file is damaged");
  for (const auto& [token, id] : vocab.items())
    vocabulary.add(token, read_integer(id, "model.vocab[\"" + token + "\"]", where), where);
}

// The token of each byte, -1 where there is none.
std::array<TokenId, 256> byte_tokens(const Vocabulary& vocabulary) {
  std::array<TokenId, 256> ids{};
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(token, byte_to_char(static_cast<uint8_t>(byte)));
    ids[static_cast<size_t>(byte)] = vocabulary.find(token).value_or(-1);
  }
  return ids;
}

bool is_true(const Json& model, const char* key) {
  const auto found = model.find(key);
  return found != model.end() && *found == true;
}

// The unknown token and whether several in a row are one; what becomes of unknown parts of a text.
std::string set_unknown(const Json& model, const Vocabulary& vocabulary, Bpe& bpe,
                        const std::string& where) {
  if (absent(model, "unk_token")) return "are dropped";
  const auto id = model["unk_token"].is_string()
                      ? vocabulary.find(model["unk_token"].get_ref<const std::string&>())
                      : std::nullopt;
  VALIDATE(id.has_value(), ExitCode::bad_data, where, ": model.unk_token ",
           model["unk_token"].dump(), " is not in the vocabulary: the file is damaged");
  bpe.set_unknown(*id, is_true(model, "fuse_unk"));
  return "become " + model["unk_token"].dump();
}

// What becomes of bytes that have no token.
void read_unknown(const Json& model, const Vocabulary& vocabulary,
                  std::span<const TokenId> byte_ids, Bpe& bpe, const std::string& where) {
  std::vector<std::string> missing;
  for (int byte = 0; byte < 256; ++byte) {
    const bool in_utf8 = byte < 0xC0 || (byte > 0xC1 && byte < 0xF5);
    if (in_utf8 && byte_ids[static_cast<size_t>(byte)] < 0) missing.push_back(std::to_string(byte));
  }
  if (missing.empty()) return;
  VALIDATE(missing.size() <= 64, ExitCode::bad_data, where, ": the vocabulary has no token for ",
           missing.size(), " of the 256 bytes (", missing[0],
           ", ...): this is no byte-level vocabulary");
  VALIDATE(!is_true(model, "byte_fallback"), ExitCode::bad_data, where,
           ": model.byte_fallback with no token for the bytes ", base::join(missing),
           " is not known");
  const std::string fate = set_unknown(model, vocabulary, bpe, where);
  log::info(base::text(where, ": the vocabulary has no token for the bytes ", base::join(missing),
                       ": in texts they ", fate));
}

// "left right" or ["left", "right"]
std::pair<std::string, std::string> merge_sides(const Json& merge, size_t rank,
                                                const std::string& where) {
  const std::string name = "model.merges[" + std::to_string(rank) + "]";
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (!merge.is_string())
    refuse(where, name + " is neither a text nor a list of two texts: the file is damaged");
  const auto& text = merge.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  const bool two = space != std::string::npos && text.find(' ', space + 1) == std::string::npos;
  if (!two)
    refuse(where, name + " is \"" + text +
                      "\", expected two tokens with one space between them: the file is damaged");
  return {text.substr(0, space), text.substr(space + 1)};
}

std::vector<Merge> read_merges(const Json& model, const Vocabulary& vocabulary,
                               const std::string& where) {
  const Json& list = member(model, "merges", "model", where);
  if (!list.is_array()) refuse(where, "model.merges is no list: the file is damaged");
  std::vector<Merge> merges;
  merges.reserve(list.size());
  for (const Json& entry : list) {
    const auto [left, right] = merge_sides(entry, merges.size(), where);
    const auto id_of = [&](const std::string& token) {
      const auto id = vocabulary.find(token);
      VALIDATE(id.has_value() && !token.empty(), ExitCode::bad_data, where, ": model.merges[",
               merges.size(), "] needs the token \"", token,
               "\", which the vocabulary does not have: the file is damaged");
      return *id;
    };
    merges.push_back({id_of(left), id_of(right), id_of(left + right)});
  }
  return merges;
}

// Settings of the BPE model that change ids and that no byte-level tokenizer of the families known
// uses.
void check_bpe_settings(const Json& model, const std::string& where) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (absent(model, key) || model[key] == "") continue;
    refuse(where, base::text("model.", key, " = ", model[key].dump(),
                             " is not known: only byte-level tokenizers are"));
  }
  if (!absent(model, "dropout") && model["dropout"] != 0) {
    refuse(where,
           "model.dropout = " + model["dropout"].dump() + " would make ids random: set it to null");
  }
}

// "<0x00>" to "<0xFF>"; -1 for all where one is missing or byte_fallback is off.
std::array<TokenId, 256> fallback_tokens(const Json& model, const Vocabulary& vocabulary) {
  std::array<TokenId, 256> ids{};
  const std::string_view digits = "0123456789ABCDEF";
  for (size_t byte = 0; byte < ids.size(); ++byte) {
    const std::string token{'<', '0', 'x', digits[byte / 16], digits[byte % 16], '>'};
    ids[byte] = vocabulary.find(token).value_or(-1);
  }
  const bool complete = std::ranges::none_of(ids, [](TokenId id) { return id < 0; });
  if (!complete || !is_true(model, "byte_fallback")) ids.fill(-1);
  return ids;
}

// Tokens that are one character.
TextMap<TokenId> characters_of(const Vocabulary& vocabulary) {
  TextMap<TokenId> characters;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const std::string& token = vocabulary.token(id);
    if (vocabulary.has(id) && !token.empty() && utf8_step(token).length == token.size())
      characters.emplace(token, id);
  }
  return characters;
}

Bpe read_byte_level_bpe(const Json& model, const Vocabulary& vocabulary, const std::string& where) {
  const auto byte_ids = byte_tokens(vocabulary);
  Bpe bpe(byte_ids, read_merges(model, vocabulary, where));
  read_unknown(model, vocabulary, byte_ids, bpe, where);
  return bpe;
}

Bpe read_character_bpe(const Json& model, const Vocabulary& vocabulary, const std::string& where) {
  const auto byte_ids = fallback_tokens(model, vocabulary);
  VALIDATE(byte_ids[0] >= 0 || !is_true(model, "byte_fallback"), ExitCode::bad_data, where,
           ": model.byte_fallback without tokens for all of the 256 bytes (<0x00> to <0xFF>) is "
           "not known");
  Bpe bpe(characters_of(vocabulary), byte_ids, read_merges(model, vocabulary, where));
  set_unknown(model, vocabulary, bpe, where);
  return bpe;
}

enum class Units { bytes, characters };

Bpe read_bpe(const Json& model, Vocabulary& vocabulary, Units units, const std::string& where) {
  const std::string type =
      model.is_object() && model.contains("type") ? type_of(model, "model", where) : "BPE";
  if (type != "BPE") refuse(where, "model type \"" + type + "\" is not known (known: BPE)");
  check_bpe_settings(model, where);
  read_vocabulary(model, vocabulary, where);
  Bpe bpe = units == Units::bytes ? read_byte_level_bpe(model, vocabulary, where)
                                  : read_character_bpe(model, vocabulary, where);
  if (!is_true(model, "ignore_merges")) return bpe;
  TextMap<TokenId> words;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    std::string word = vocabulary.token(id);
    if (!vocabulary.has(id) ||
        (units == Units::bytes && !token_to_bytes(vocabulary.token(id), word)))
      continue;
    words.emplace(std::move(word), id);
  }
  bpe.set_whole_words(std::move(words));
  return bpe;
}

// The tokens of {"SpecialToken": {"id": name}} by the processor's own table.
void template_tokens(const Json& processor, const Json& piece, std::vector<TokenId>& into,
                     const Vocabulary& vocabulary, const std::string& where) {
  const Json& name = member(piece, "id", "post_processor.SpecialToken", where);
  if (!name.is_string())
    refuse(where, "a SpecialToken of the post_processor has no name: the file is damaged");
  const Json& table = member(processor, "special_tokens", "post_processor", where);
  const Json& entry = member(table, name.get_ref<const std::string&>().c_str(),
                             "post_processor.special_tokens", where);
  for (const Json& id : member(entry, "ids", "post_processor.special_tokens", where)) {
    const int64_t value = read_integer(id, "a token id of the post_processor", where);
    VALIDATE(value >= 0 && value < vocabulary.size() && vocabulary.has(static_cast<TokenId>(value)),
             ExitCode::bad_data, where, ": the post_processor adds the id ", value,
             ", which no token has: the file is damaged");
    into.push_back(static_cast<TokenId>(value));
  }
}

void read_template(const Json& processor, TokenizerModel& model, const std::string& where) {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
  bool text_seen = false;
  for (const Json& piece : member(processor, "single", "post_processor", where)) {
    if (piece.is_object() && piece.contains("SpecialToken")) {
      template_tokens(processor, piece["SpecialToken"], text_seen ? suffix : prefix,
                      model.vocabulary, where);
    } else if (piece.is_object() && piece.contains("Sequence") && !text_seen) {
      text_seen = true;
    } else {
      refuse(where, "post_processor TemplateProcessing has the piece " + piece.dump() +
                        ", which is not known");
    }
  }
  if (!text_seen)
    refuse(where,
           "post_processor TemplateProcessing has no place for the text: the file is damaged");
  model.prefix.insert(model.prefix.begin(), prefix.begin(), prefix.end());
  model.suffix.insert(model.suffix.end(), suffix.begin(), suffix.end());
}

void read_post_processor(const Json& json, TokenizerModel& model, const std::string& where) {
  if (json.is_null()) return;
  const std::string type = type_of(json, "post_processor", where);
  if (type == "ByteLevel") return;  // it moves offsets only
  if (type == "TemplateProcessing") return read_template(json, model, where);
  if (type != "Sequence") {
    refuse(where, "post_processor type \"" + type +
                      "\" is not known (known: ByteLevel, TemplateProcessing, Sequence)");
  }
  for (const Json& part : member(json, "processors", "post_processor", where))
    read_post_processor(part, model, where);
}

AddedToken read_added_token(const Json& json, const std::string& where) {
  const Json& content = member(json, "content", "added_tokens[]", where);
  if (!content.is_string() || content == "")
    refuse(where, "an added token has no text: the file is damaged");
  const auto flag = [&](const char* key, bool otherwise) {
    const auto found = json.find(key);
    if (found == json.end()) return otherwise;
    if (!found->is_boolean())
      refuse(where, base::text("added token ", content.dump(), ": ", key, " is not true or false"));
    return found->get<bool>();
  };
  AddedToken token;
  token.content = content.get<std::string>();
  token.single_word = flag("single_word", false);
  token.lstrip = flag("lstrip", false);
  token.rstrip = flag("rstrip", false);
  token.special = flag("special", false);
  token.normalized = flag("normalized", !token.special);
  return token;
}

}  // namespace

int64_t read_integer(const Json& json, const std::string& name, const std::string& where) {
  if (!json.is_number_integer())
    refuse(where, name + " is " + json.dump() + ", expected a whole number: the file is damaged");
  const bool huge =
      json.is_number_unsigned() &&
      json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return huge ? std::numeric_limits<int64_t>::max() : json.get<int64_t>();
}

AddedToken read_added_token(const Json& json, int64_t id, Vocabulary& vocabulary,
                            const std::string& where) {
  AddedToken token = read_added_token(json, where);
  vocabulary.add(token.content, id, where);
  token.id = static_cast<TokenId>(id);
  if (token.special) vocabulary.mark_special(token.id);
  return token;
}

TokenizerModel read_tokenizer_json(const Json& json, const std::string& file) {
  if (!json.is_object())
    refuse(file, "not an object but " + kind_of(json) + ": this is no tokenizer.json");
  const Json& bpe_json = member(json, "model", "tokenizer", file);
  const auto part = [&](const char* key) { return json.contains(key) ? json[key] : Json(); };
  PreTokenizer pre_tokenizer(part("pre_tokenizer"), file);
  Decoder decoder(part("decoder"), file);
  VALIDATE(pre_tokenizer.byte_level() == decoder.byte_level(), ExitCode::bad_data, file, ": the ",
           decoder.byte_level() ? "decoder" : "pre_tokenizer",
           " is ByteLevel, the other of decoder and pre_tokenizer is not: texts would not come "
           "back");
  Vocabulary vocabulary;
  Bpe bpe =
      read_bpe(bpe_json, vocabulary, decoder.byte_level() ? Units::bytes : Units::characters, file);
  TokenizerModel model{.vocabulary = std::move(vocabulary),
                       .bpe = std::move(bpe),
                       .pre_tokenizer = std::move(pre_tokenizer),
                       .normalizer = Normalizer(part("normalizer"), file),
                       .decoder = std::move(decoder),
                       .added = {},
                       .prefix = {},
                       .suffix = {}};
  if (!absent(json, "added_tokens")) {
    for (const Json& token : json["added_tokens"]) {
      const int64_t id =
          read_integer(member(token, "id", "added_tokens[]", file), "added_tokens[].id", file);
      model.added.push_back(read_added_token(token, id, model.vocabulary, file));
    }
  }
  if (json.contains("post_processor")) read_post_processor(json["post_processor"], model, file);
  model.rules = encoding_rules(json);
  if (const TokenId gap = model.vocabulary.first_gap(); gap >= 0) {
    log::warning(base::text(file, ": no token has the id ", gap, " (ids below ",
                            model.vocabulary.size(), " have a gap)"));
  }
  return model;
}

}  // namespace trireme::text
