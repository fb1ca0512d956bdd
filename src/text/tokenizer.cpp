#include "trireme/text/tokenizer.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "text/tokenizer_files.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {

namespace {

constexpr uint64_t largest_tokenizer_file = uint64_t{128} << 20;  // the largest known has 33 MiB

std::string nfc(std::string_view text) {
  const bool ascii =
      std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
  if (ascii) return std::string(text);
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &out,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) throw InternalError(base::text("utf8proc: ", utf8proc_errmsg(length)));
  std::string normal(reinterpret_cast<const char*>(out), static_cast<size_t>(length));
  std::free(out);
  return normal;
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
      } else if (const std::string content = normalize(token.content); !content.empty()) {
        normalized_tokens.add(token, content);
      }
    }
  }
  std::string normalize(std::string_view text) const {
    return model.nfc ? nfc(text) : std::string(text);
  }

  std::string source;  // file, for messages
  TokenizerModel model;
  SpecialTokenNames names;
  AddedTokenFinder raw_tokens;         // searched in the text as it is
  AddedTokenFinder normalized_tokens;  // searched in the normalised text
};

Tokenizer Tokenizer::load(const std::filesystem::path& folder) {
  const auto file = folder / "tokenizer.json";
  const base::FileWork work{"read", file};
  VALIDATE(std::filesystem::exists(file), ExitCode::input_missing, file.string(),
           ": no such file (a model folder needs its tokenizer.json): copy it there or convert the "
           "GGUF file");
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

std::vector<TokenId> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  const size_t invalid = first_invalid_utf8(text);
  VALIDATE(invalid == std::string_view::npos, ExitCode::bad_data,
           "a text to encode is not UTF-8 at byte ", invalid, ": correct the text");
  const TokenizerModel& model = impl_->model;
  std::vector<TokenId> ids;
  if (special == SpecialTokens::added) ids = model.prefix;
  PreTokenizer::Words words;
  Bpe::Scratch scratch;
  for (const Piece& raw : impl_->raw_tokens.split(text)) {
    if (raw.id >= 0) {
      ids.push_back(raw.id);
      continue;
    }
    const std::string normal = impl_->normalize(raw.text);
    for (const Piece& piece : impl_->normalized_tokens.split(normal)) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
        continue;
      }
      model.pre_tokenizer.split(piece.text, words);
      for (const std::string_view word : words.list) model.bpe.encode(word, scratch, ids);
    }
  }
  if (special == SpecialTokens::added)
    ids.insert(ids.end(), model.suffix.begin(), model.suffix.end());
  return ids;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  const Vocabulary& vocabulary = impl_->model.vocabulary;
  return vocabulary.has(id) ? std::string_view(vocabulary.bytes(id)) : std::string_view();
}

std::string Tokenizer::decode(std::span<const TokenId> ids, Skip skip) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (skip == Skip::special && is_special(id)) continue;
    bytes += token_bytes(id);
  }
  return first_invalid_utf8(bytes) == std::string::npos ? bytes : utf8_lossy(bytes);
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

void Tokenizer::check_model(int64_t rows) const {
  VALIDATE(vocab_size() <= rows, ExitCode::bad_data, impl_->source, ": the token \"",
           id_to_token(vocab_size() - 1).value_or(""), "\" has the id ", vocab_size() - 1,
           ", but the model has ", rows,
           " vocabulary rows (vocab_size of config.json): the tokenizer and the model do not "
           "belong together");
}

bool Tokenizer::has_chat_template() const { return impl_->names.chat_template.has_value(); }

std::string Tokenizer::render_chat(std::span<const Message> messages,
                                   GenerationPrompt prompt) const {
  const SpecialTokenNames& names = impl_->names;
  if (!names.template_error.empty()) throw UserError(ExitCode::bad_data, names.template_error);
  VALIDATE(names.chat_template.has_value(), ExitCode::bad_data, impl_->source,
           ": the model has no chat template, but the data has `messages`: add chat_template.jinja "
           "to the model's folder, or use `prompt`");
  return names.chat_template->render(messages, prompt, names.texts);
}

std::vector<TokenId> Tokenizer::encode_chat(std::span<const Message> messages,
                                            GenerationPrompt prompt) const {
  return encode(render_chat(messages, prompt));
}

StreamingDecoder::StreamingDecoder(Tokenizer tokenizer, Skip skip)
    : tokenizer_(std::move(tokenizer)), skip_(skip) {}

std::string StreamingDecoder::push(TokenId id) {
  if (skip_ == Skip::special && tokenizer_.is_special(id)) return "";
  held_ += tokenizer_.token_bytes(id);
  std::string out;
  size_t done = 0;
  while (done < held_.size()) {
    const Utf8Step step = utf8_step(std::string_view(held_).substr(done));
    if (step.kind == Utf8::incomplete) break;
    if (step.kind == Utf8::valid) {
      out.append(held_, done, step.length);
    } else {
      append_utf8(out, 0xFFFD);
    }
    done += step.length;
  }
  held_.erase(0, done);
  return out;
}

std::string StreamingDecoder::finish() {
  std::string out = utf8_lossy(held_);
  held_.clear();
  return out;
}

}  // namespace trireme::text
