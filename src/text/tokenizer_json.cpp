#include <algorithm>
#include <limits>

#include "text/json_members.hpp"
#include "text/tokenizer_files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/text/tokenizer_parts.hpp"

namespace trireme::text {

namespace {

TokenId known_id(const Json& id, const Vocabulary& vocabulary, const std::string& where) {
  const int64_t value = read_integer(id, "a token id of the post_processor", where);
  VALIDATE(value >= 0 && value < vocabulary.size() && vocabulary.has(static_cast<TokenId>(value)),
           ExitCode::bad_data, where, ": the post_processor adds the id ", value,
           ", which no token has: the file is damaged");
  return static_cast<TokenId>(value);
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
    into.push_back(known_id(id, vocabulary, where));
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

// ["</s>", 2]
TokenId pair_token(const Json& processor, const char* key, const Vocabulary& vocabulary,
                   const std::string& where) {
  const Json& pair = member(processor, key, "post_processor", where);
  if (!pair.is_array() || pair.size() != 2)
    refuse(where,
           base::text("post_processor.", key, " is not a token and its id: the file is damaged"));
  return known_id(pair[1], vocabulary, where);
}

void read_post_processor(const Json& json, TokenizerModel& model, const std::string& where) {
  if (json.is_null()) return;
  const std::string type = type_of(json, "post_processor", where);
  if (type == "ByteLevel") return;  // it moves offsets only
  if (type == "TemplateProcessing") return read_template(json, model, where);
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    model.prefix.insert(model.prefix.begin(), pair_token(json, "cls", model.vocabulary, where));
    model.suffix.push_back(pair_token(json, "sep", model.vocabulary, where));
    return;
  }
  if (type != "Sequence") {
    refuse(where, base::text("post_processor type \"", type,
                             "\" is not known (known: ", list_of(known_post_processors), ")"));
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
  const Json& model_json = member(json, "model", "tokenizer", file);
  const auto part = [&](const char* key) { return json.contains(key) ? json[key] : Json(); };
  Normalizer normalizer(part("normalizer"), file);
  PreTokenizer pre_tokenizer(part("pre_tokenizer"), file);
  Decoder decoder(part("decoder"), file);
  const bool fits = pre_tokenizer.byte_level() == decoder.byte_level() ||
                    (pre_tokenizer.byte_level() && decoder.by_suffix());  // as CLIP
  VALIDATE(fits, ExitCode::bad_data, file, ": the ",
           decoder.byte_level() ? "decoder" : "pre_tokenizer",
           " is ByteLevel, the other of decoder and pre_tokenizer is not: texts would not come "
           "back");
  Vocabulary vocabulary;
  WordModel words = read_word_model(
      model_json, vocabulary, pre_tokenizer.byte_level() ? Units::bytes : Units::characters, file);
  TokenizerModel model{.vocabulary = std::move(vocabulary),
                       .words = std::move(words),
                       .pre_tokenizer = std::move(pre_tokenizer),
                       .normalizer = std::move(normalizer),
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
