// The `model` of tokenizer.json, read.
#include <algorithm>

#include "text/byte_alphabet.hpp"
#include "text/json_members.hpp"
#include "text/tokenizer_files.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/text/tokenizer_parts.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {

namespace {

void read_vocabulary(const Json& model, Vocabulary& vocabulary, const std::string& where) {
  const Json& vocab = member(model, "vocab", "model", where);
  if (!vocab.is_object() || vocab.empty())
    refuse(where, "model.vocab is not an object with tokens: the file is damaged");
  for (const auto& [token, id] : vocab.items())
    vocabulary.add(token, read_integer(id, "model.vocab[\"" + token + "\"]", where), where);
}

// The token of each byte, -1 where there is none.
ByteIds byte_tokens(const Vocabulary& vocabulary, const std::string& prefix,
                    const std::string& suffix) {
  ByteIds ids{};
  for (int byte = 0; byte < 256; ++byte) {
    std::string token = prefix;
    append_utf8(token, byte_to_char(static_cast<uint8_t>(byte)));
    token += suffix;
    ids[static_cast<size_t>(byte)] = vocabulary.find(token).value_or(-1);
  }
  return ids;
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

// Use of bytes that have no token.
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
  log::detail(base::text(where, ": the vocabulary has no token for the bytes ", base::join(missing),
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

// A merged token loses the prefix of its right side.
std::vector<Merge> read_merges(const Json& model, const Vocabulary& vocabulary,
                               const std::string& prefix, const std::string& where) {
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
    const std::string joined = left + right.substr(std::min(prefix.size(), right.size()));
    merges.push_back({id_of(left), id_of(right), id_of(joined)});
  }
  return merges;
}

// A setting that is a text; "" where there is none.
std::string text_setting(const Json& model, const char* key, const std::string& where) {
  if (absent(model, key)) return "";
  if (!model[key].is_string())
    refuse(where, base::text("model.", key, " is not a text: the file is damaged"));
  return model[key].get<std::string>();
}

void check_dropout(const Json& model, const std::string& where) {
  if (absent(model, "dropout") || model["dropout"] == 0) return;
  refuse(where,
         "model.dropout = " + model["dropout"].dump() + " would make ids random: set it to null");
}

// "<0x00>" to "<0xFF>"; -1 for all where one is missing or byte_fallback is off.
ByteIds fallback_tokens(const Json& model, const Vocabulary& vocabulary) {
  ByteIds ids{};
  const std::string_view digits = "0123456789ABCDEF";
  for (size_t byte = 0; byte < ids.size(); ++byte) {
    const std::string token{'<', '0', 'x', digits[byte / 16], digits[byte % 16], '>'};
    ids[byte] = vocabulary.find(token).value_or(-1);
  }
  const bool complete = std::ranges::none_of(ids, [](TokenId id) { return id < 0; });
  if (!complete || !is_true(model, "byte_fallback")) ids.fill(-1);
  return ids;
}

// Tokens that are one character between a prefix and a suffix.
TextMap<TokenId> characters_of(const Vocabulary& vocabulary, const std::string& prefix,
                               const std::string& suffix) {
  TextMap<TokenId> characters;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    std::string_view token = vocabulary.token(id);
    const bool fits = vocabulary.has(id) && token.size() > prefix.size() + suffix.size() &&
                      token.starts_with(prefix) && token.ends_with(suffix);
    if (!fits) continue;
    token.remove_prefix(prefix.size());
    token.remove_suffix(suffix.size());
    if (utf8_step(token).length == token.size()) characters.emplace(token, id);
  }
  return characters;
}

// The units of a word's first and last where the file marks those inside or at the end.
template <class Make>
void set_edges(const Json& model, Bpe& bpe, const Make& make, const std::string& where) {
  const std::string prefix = text_setting(model, "continuing_subword_prefix", where);
  const std::string suffix = text_setting(model, "end_of_word_suffix", where);
  if (prefix.empty() && suffix.empty()) return;
  VALIDATE(!is_true(model, "byte_fallback"), ExitCode::bad_data, where,
           ": model.byte_fallback with a prefix or suffix of words is not known");
  bpe.set_edges(make("", ""), make(prefix, suffix), make("", suffix));
}

Bpe read_byte_level_bpe(const Json& model, const Vocabulary& vocabulary, const std::string& where) {
  const std::string prefix = text_setting(model, "continuing_subword_prefix", where);
  const auto units = [&](const std::string& before, const std::string& after) {
    return BpeUnits{byte_tokens(vocabulary, before, after), {}};
  };
  const BpeUnits inner = units(prefix, "");
  Bpe bpe(Bpe::From::bytes, inner, read_merges(model, vocabulary, prefix, where));
  set_edges(model, bpe, units, where);
  if (prefix.empty()) {
    read_unknown(model, vocabulary, inner.bytes, bpe, where);
  } else {
    set_unknown(model, vocabulary, bpe, where);
  }
  return bpe;
}

Bpe read_character_bpe(const Json& model, const Vocabulary& vocabulary, const std::string& where) {
  const std::string prefix = text_setting(model, "continuing_subword_prefix", where);
  const auto byte_ids = fallback_tokens(model, vocabulary);
  VALIDATE(byte_ids[0] >= 0 || !is_true(model, "byte_fallback"), ExitCode::bad_data, where,
           ": model.byte_fallback without tokens for all of the 256 bytes (<0x00> to <0xFF>) is "
           "not known");
  const auto units = [&](const std::string& before, const std::string& after) {
    return BpeUnits{byte_ids, characters_of(vocabulary, before, after)};
  };
  Bpe bpe(Bpe::From::characters, units(prefix, ""), read_merges(model, vocabulary, prefix, where));
  set_edges(model, bpe, units, where);
  set_unknown(model, vocabulary, bpe, where);
  return bpe;
}

Bpe read_bpe(const Json& model, Vocabulary& vocabulary, Units units, const std::string& where) {
  check_dropout(model, where);
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

Unigram read_unigram(const Json& model, Vocabulary& vocabulary, const std::string& where) {
  const Json& list = member(model, "vocab", "model", where);
  if (!list.is_array() || list.empty())
    refuse(where, "model.vocab is not a list of pieces with scores: the file is damaged");
  std::vector<Unigram::Piece> pieces;
  pieces.reserve(list.size());
  for (const Json& entry : list) {
    const bool pair = entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
                      entry[1].is_number() && !entry[0].get_ref<const std::string&>().empty();
    VALIDATE(pair, ExitCode::bad_data, where, ": model.vocab[", pieces.size(),
             "] is not a piece and its score: the file is damaged");
    vocabulary.add(entry[0].get_ref<const std::string&>(), static_cast<int64_t>(pieces.size()),
                   where);
    pieces.push_back({entry[0].get<std::string>(), entry[1].get<double>()});
  }
  TokenId unknown = -1;
  if (!absent(model, "unk_id")) {
    const int64_t id = read_integer(model["unk_id"], "model.unk_id", where);
    VALIDATE(id >= 0 && id < vocabulary.size(), ExitCode::bad_data, where, ": model.unk_id ", id,
             " is not in the vocabulary: the file is damaged");
    unknown = static_cast<TokenId>(id);
  }
  return {std::move(pieces), unknown, fallback_tokens(model, vocabulary), where};
}

}  // namespace

WordModel read_word_model(const Json& model, Vocabulary& vocabulary, Units units,
                          const std::string& where) {
  const std::string type =
      model.is_object() && model.contains("type") ? type_of(model, "model", where) : "BPE";
  if (type == "BPE") return read_bpe(model, vocabulary, units, where);
  if (type != "Unigram")
    refuse(where, base::text("model type \"", type,
                             "\" is not known (known: ", list_of(known_word_models), ")"));
  VALIDATE(units == Units::characters, ExitCode::bad_data, where,
           ": a Unigram model on bytes (pre_tokenizer ByteLevel) is not known");
  return read_unigram(model, vocabulary, where);
}

}  // namespace trireme::text
