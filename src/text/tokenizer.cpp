#include "trireme/text/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <tuple>

#include "text/tokenizer_files.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/hash.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {

namespace {

constexpr uint64_t largest_tokenizer_file = uint64_t{128} << 20;  // the largest known has 33 MiB

bool same_tokens(const Vocabulary& a, const Vocabulary& b) {
  if (a.size() != b.size()) return false;
  for (TokenId id = 0; id < a.size(); ++id) {
    if (a.has(id) != b.has(id) || (a.has(id) && a.token(id) != b.token(id))) return false;
  }
  return true;
}

// Added tokens, in no order and each once.
auto searched_tokens(const TokenizerModel& model) {
  std::set<std::tuple<std::string, TokenId, bool, bool, bool, bool>> out;
  for (const AddedToken& token : model.added) {
    out.emplace(token.content, token.id, token.single_word, token.lstrip, token.rstrip,
                token.normalized);
  }
  return out;
}

}  // namespace

struct Tokenizer::Impl {
  Impl(TokenizerModel read_model, const SideFiles& files, std::string file)
      : source(std::move(file)),
        model(std::move(read_model)),
        names(read_special_tokens(files, model)) {
    for (const AddedToken& token : model.added) {
      if (!token.normalized) {
        raw_tokens.add(token, token.content);
        continue;
      }
      bool starts = true;
      const std::string content = model.normalizer.run(token.content, starts);
      if (!content.empty()) normalized_tokens.add(token, content);
    }
  }

  std::string source;  // file, for messages
  TokenizerModel model;
  SpecialTokenNames names;
  AddedTokenFinder raw_tokens;         // searched in the text as it is
  AddedTokenFinder normalized_tokens;  // searched in the normalised text
};

namespace {

// Older folders have their tokenizer in another form, which transformers converts.
void check_tokenizer_file(const std::filesystem::path& folder) {
  const auto file = folder / "tokenizer.json";
  if (std::filesystem::exists(file)) return;
  for (const char* other : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
                            "tekken.json", "vocab.json", "qwen.tiktoken"}) {
    VALIDATE(!std::filesystem::exists(folder / other), ExitCode::input_missing, file.string(),
             ": no such file (the folder has ", other,
             ", another form of tokenizer): make it with "
             "`pip install transformers sentencepiece protobuf tiktoken` and `python3 -c "
             "\"from transformers import AutoTokenizer; "
             "AutoTokenizer.from_pretrained('",
             folder.string(), "').save_pretrained('", folder.string(), "')\"`");
  }
  throw UserError(ExitCode::input_missing,
                  base::text(file.string(),
                             ": no such file (a model folder needs its "
                             "tokenizer.json): copy it there or convert the GGUF "
                             "file"));
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& folder) {
  const auto file = folder / "tokenizer.json";
  const base::FileWork work{"read", file};
  check_tokenizer_file(folder);
  const Json json = read_json_file(file.string(), largest_tokenizer_file);
  return Tokenizer(std::make_shared<const Impl>(read_tokenizer_json(json, file.string()),
                                                read_side_files(folder.string()), file.string()));
}

Tokenizer Tokenizer::from_parts(const TokenizerParts& parts) {
  SideFiles files;
  files.folder = parts.source;
  files.tokenizer_config = tokenizer_config_of(parts);
  return Tokenizer(std::make_shared<const Impl>(
      read_tokenizer_json(tokenizer_json_of(parts), parts.source), files, parts.source));
}

namespace {

bool begins_with(std::span<const TokenId> ids, std::span<const TokenId> with) {
  return ids.size() >= with.size() && std::equal(with.begin(), with.end(), ids.begin());
}

// Whether a text has the tokens that the post-processor puts around texts; space beside them does
// not count.
struct WrittenTokens {
  bool prefix, suffix;
};
WrittenTokens written_tokens(const TokenizerModel& model, std::string_view text) {
  const auto text_of = [&](const std::vector<TokenId>& ids) {
    std::string joined;
    for (const TokenId id : ids) joined += model.vocabulary.token(id);
    return joined;
  };
  const std::string prefix = text_of(model.prefix), suffix = text_of(model.suffix);
  text.remove_prefix(leading_space(text, is_python_space));
  text.remove_suffix(trailing_space(text, is_python_space));
  const bool begins = !prefix.empty() && text.starts_with(prefix);
  if (begins) text.remove_prefix(prefix.size());
  return {begins, !suffix.empty() && text.ends_with(suffix)};
}

// Around `ids` what the post-processor adds; with `once` but for what is there.
void add_special_tokens(const TokenizerModel& model, SpecialTokens special, std::string_view text,
                        std::vector<TokenId>& ids) {
  const bool once = special == SpecialTokens::once;
  const WrittenTokens written = once ? written_tokens(model, text) : WrittenTokens{};
  const std::span<const TokenId> prefix(model.prefix), suffix(model.suffix);
  const bool begun = written.prefix || (once && begins_with(ids, prefix));
  if (!begun) ids.insert(ids.begin(), prefix.begin(), prefix.end());
  const auto rest = std::span<const TokenId>(ids).subspan(std::min(prefix.size(), ids.size()));
  const bool ended = rest.size() >= suffix.size() && begins_with(rest.last(suffix.size()), suffix);
  if (!written.suffix && !(once && ended)) ids.insert(ids.end(), suffix.begin(), suffix.end());
}

}  // namespace

std::vector<TokenId> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  const size_t invalid = first_invalid_utf8(text);
  VALIDATE(invalid == std::string_view::npos, ExitCode::bad_data,
           "a text to encode is not UTF-8 at byte ", invalid, ": correct the text");
  const TokenizerModel& model = impl_->model;
  std::vector<TokenId> ids;
  PreTokenizer::Words words;
  WordScratch scratch;
  for (const Piece& raw : impl_->raw_tokens.split(text)) {
    if (raw.id >= 0) {
      ids.push_back(raw.id);
      continue;
    }
    bool starts = raw.text.data() == text.data();
    const std::string normal = model.normalizer.run(raw.text, starts);
    for (const Piece& piece : impl_->normalized_tokens.split(normal)) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
        continue;
      }
      model.pre_tokenizer.split(piece.text, starts && piece.text.data() == normal.data(), words);
      std::visit(
          [&](const auto& to_tokens) {
            for (const std::string_view word : words.list) to_tokens.encode(word, scratch, ids);
          },
          model.words);
    }
  }
  if (special != SpecialTokens::none) add_special_tokens(model, special, text, ids);
  return ids;
}

void Tokenizer::decode_next(TokenId id, Skip skip, DecodeState& state, std::string& out) const {
  const Vocabulary& vocabulary = impl_->model.vocabulary;
  if (!vocabulary.has(id) || (skip == Skip::special && is_special(id))) return;
  impl_->model.decoder.push(vocabulary.token(id), vocabulary.bytes(id), state, out);
}

void Tokenizer::decode_end(DecodeState& state, std::string& out) const {
  impl_->model.decoder.finish(state, out);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, Skip skip) const {
  std::string out;
  DecodeState state;
  for (const TokenId id : ids) decode_next(id, skip, state, out);
  decode_end(state, out);
  return out;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  const Vocabulary& vocabulary = impl_->model.vocabulary;
  return vocabulary.has(id) ? std::string_view(vocabulary.bytes(id)) : std::string_view();
}

std::optional<std::string> Tokenizer::id_to_token(TokenId id) const {
  const Vocabulary& vocabulary = impl_->model.vocabulary;
  return vocabulary.has(id) ? std::optional(vocabulary.token(id)) : std::nullopt;
}

std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  return impl_->model.vocabulary.find(token);
}
TokenId Tokenizer::vocab_size() const { return impl_->model.vocabulary.size(); }
bool Tokenizer::is_special(TokenId id) const {
  return impl_->model.vocabulary.has(id) && impl_->model.vocabulary.special(id);
}
std::optional<TokenId> Tokenizer::bos_id() const { return impl_->names.bos; }
std::optional<TokenId> Tokenizer::eos_id() const { return impl_->names.eos; }
std::optional<TokenId> Tokenizer::pad_id() const { return impl_->names.pad; }
std::span<const TokenId> Tokenizer::eos_ids() const { return impl_->names.eos_ids; }

bool Tokenizer::shares_ids_with(const Tokenizer& other) const {
  const Vocabulary& a = impl_->model.vocabulary;
  const Vocabulary& b = other.impl_->model.vocabulary;
  for (TokenId id = 0; id < std::min(a.size(), b.size()); ++id) {
    if (a.has(id) && b.has(id) && a.token(id) != b.token(id)) return false;
  }
  return true;
}

bool Tokenizer::encodes_like(const Tokenizer& other) const {
  if (impl_ == other.impl_) return true;
  const TokenizerModel& a = impl_->model;
  const TokenizerModel& b = other.impl_->model;
  return a.rules == b.rules && a.prefix == b.prefix && a.suffix == b.suffix &&
         same_tokens(a.vocabulary, b.vocabulary) && searched_tokens(a) == searched_tokens(b);
}

uint64_t Tokenizer::reading_digest() const {
  const TokenizerModel& model = impl_->model;
  const SpecialTokenNames& names = impl_->names;
  uint64_t digest = base::fnv_step(base::fnv_basis, model.rules);
  const auto add = [&](std::string_view text) {
    digest = base::fnv_step(base::fnv1a(text, digest), text.size());
  };
  const auto add_ids = [&](std::span<const TokenId> ids) {
    for (const TokenId id : ids) add(std::to_string(id));
    add("end");
  };
  for (TokenId id = 0; id < vocab_size(); ++id)
    add(model.vocabulary.has(id) ? model.vocabulary.token(id) : "");
  for (const auto& [content, id, word, left, right, normalized] : searched_tokens(model)) {
    add(content);
    add_ids(std::array{id, TokenId{word}, TokenId{left}, TokenId{right}, TokenId{normalized}});
  }
  for (const auto& ids : {model.prefix, model.suffix, names.eos_ids}) add_ids(ids);
  add_ids(std::array{names.eos.value_or(-1)});
  const std::string chat = names.chat_template ? names.chat_template->text() : "";
  add(chat);
  for (const auto& [name, text] : names.texts) {
    if (chat.find(name) != std::string::npos) add(text);
  }
  return digest;
}

void Tokenizer::check_model(int64_t rows) const {
  VALIDATE(vocab_size() <= rows, ExitCode::bad_data, impl_->source, ": the token \"",
           id_to_token(vocab_size() - 1).value_or(""), "\" has the id ", vocab_size() - 1,
           ", but the model has ", rows,
           " vocabulary rows (vocab_size of config.json): the tokenizer and the model do not "
           "belong together");
}

bool Tokenizer::has_chat_template() const { return impl_->names.chat_template.has_value(); }

bool Tokenizer::has_special_tokens(std::string_view text) const {
  const WrittenTokens written = written_tokens(impl_->model, text);
  return written.prefix || written.suffix;
}

bool Tokenizer::template_asks_for_date() const {
  return has_chat_template() && impl_->names.chat_template->asks_for_date();
}

Tokenizer Tokenizer::with_template_inputs(TemplateInputs inputs) const {
  Tokenizer made = *this;
  made.inputs_ = std::move(inputs);
  return made;
}

std::string Tokenizer::render_chat(std::span<const Message> messages, GenerationPrompt prompt,
                                   const std::string& variables) const {
  const SpecialTokenNames& names = impl_->names;
  if (!names.template_error.empty()) throw UserError(ExitCode::bad_data, names.template_error);
  VALIDATE(names.chat_template.has_value(), ExitCode::bad_data, impl_->source,
           ": the model has no chat template, but the data has `messages`: add chat_template.jinja "
           "to the model's folder, or use `prompt`");
  return names.chat_template->render(
      messages, prompt, names.texts,
      {merged_variables(inputs_.variables, variables), inputs_.date});
}

std::vector<TokenId> Tokenizer::encode_chat(std::span<const Message> messages,
                                            GenerationPrompt prompt,
                                            const std::string& variables) const {
  return encode(render_chat(messages, prompt, variables));
}

StreamingDecoder::StreamingDecoder(Tokenizer tokenizer, Skip skip)
    : tokenizer_(std::move(tokenizer)), skip_(skip) {}

std::string StreamingDecoder::push(TokenId id) {
  std::string out;
  tokenizer_.decode_next(id, skip_, state_, out);
  return out;
}

std::string StreamingDecoder::finish() {
  std::string out;
  tokenizer_.decode_end(state_, out);
  return out;
}

}  // namespace trireme::text
