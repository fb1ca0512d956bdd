#include <algorithm>
#include <filesystem>

#include "text/tokenizer_files.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/text/tokenizer.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {

namespace {

// GGUF's token types (tokenizer.ggml.token_type)
constexpr int32_t type_unknown = 2;
constexpr int32_t type_control = 3;
constexpr int32_t type_user_defined = 4;

// The parts of tokenizer.json that a GGUF file names only by the name of its pre-tokenizer.
struct Family {
  Json normalizer;
  Json pre_tokenizer;
  bool ignore_merges = false;
  bool add_bos = false;
};

Json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

// The split pattern that Llama 3 and Qwen2 share but for the number of digits in a word.
Json split_then_bytes(const std::string& digits) {
  const std::string pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)" + digits +
                              R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(false)})}};
}

Family family_of(const TokenizerParts& parts) {
  const std::string& name = parts.pre_tokenizer;
  if (name == "gpt-2" || name == "gpt2")
    return {.normalizer = {}, .pre_tokenizer = byte_level(true)};
  if (name == "smollm") {
    const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
    return {.normalizer = {},
            .pre_tokenizer = {{"type", "Sequence"},
                              {"pretokenizers", Json::array({digits, byte_level(true)})}}};
  }
  if (name == "llama-bpe" || name == "llama3") {
    return {.normalizer = {},
            .pre_tokenizer = split_then_bytes(R"(\p{N}{1,3})"),
            .ignore_merges = true,
            .add_bos = true};
  }
  if (name == "qwen2")
    return {.normalizer = {{"type", "NFC"}}, .pre_tokenizer = split_then_bytes(R"(\p{N})")};
  throw UserError(ExitCode::bad_data,
                  base::text(parts.source, ": tokenizer.ggml.pre = \"", name,
                             "\" is not known (known: gpt-2, smollm, llama-bpe, qwen2): take the "
                             "model's tokenizer.json"));
}

void check_parts(const TokenizerParts& parts) {
  VALIDATE(parts.model == "gpt2", ExitCode::bad_data, parts.source, ": tokenizer.ggml.model = \"",
           parts.model,
           "\" is not known (known: gpt2, the byte-level BPE): take the model's tokenizer.json");
  VALIDATE(!parts.tokens.empty(), ExitCode::bad_data, parts.source,
           ": tokenizer.ggml.tokens is missing or empty: the file has no tokenizer");
  VALIDATE(parts.types.empty() || parts.types.size() == parts.tokens.size(), ExitCode::bad_data,
           parts.source, ": tokenizer.ggml.token_type has ", parts.types.size(), " entries for ",
           parts.tokens.size(), " tokens: the file is damaged");
  for (const std::string& token : parts.tokens) {
    VALIDATE(first_invalid_utf8(token) == std::string::npos, ExitCode::bad_data, parts.source,
             ": a token of tokenizer.ggml.tokens is not UTF-8: the file is damaged");
  }
  for (const auto& [name, id] : {std::pair{"bos", parts.bos},
                                 {"eos", parts.eos},
                                 {"padding", parts.pad},
                                 {"unknown", parts.unk}}) {
    VALIDATE(!id || (*id >= 0 && static_cast<size_t>(*id) < parts.tokens.size()),
             ExitCode::bad_data, parts.source, ": tokenizer.ggml.", name, "_token_id ",
             id.value_or(0), " is outside the ", parts.tokens.size(),
             " tokens: the file is damaged");
  }
}

bool is_special(const TokenizerParts& parts, size_t id) {
  const auto named = [&](const std::optional<TokenId>& token) {
    return token && static_cast<size_t>(*token) == id;
  };
  const bool control =
      !parts.types.empty() && (parts.types[id] == type_control || parts.types[id] == type_unknown);
  return control || named(parts.bos) || named(parts.eos) || named(parts.pad) || named(parts.unk);
}

Json added_tokens(const TokenizerParts& parts) {
  Json list = Json::array();
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    const bool special = is_special(parts, id);
    const bool user_defined = !parts.types.empty() && parts.types[id] == type_user_defined;
    if (!special && !user_defined) continue;
    list.push_back({{"id", id},
                    {"content", parts.tokens[id]},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", special}});
  }
  return list;
}

Json post_processor(const TokenizerParts& parts, bool add_bos_by_default) {
  const bool add_bos = parts.add_bos.value_or(add_bos_by_default) && parts.bos;
  const bool add_eos = parts.add_eos.value_or(false) && parts.eos;
  if (!add_bos && !add_eos) return Json();
  Json single = Json::array();
  Json table = Json::object();
  const auto add = [&](TokenId id) {
    const std::string& token = parts.tokens[static_cast<size_t>(id)];
    single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    table[token] = {{"id", token}, {"ids", Json::array({id})}, {"tokens", Json::array({token})}};
  };
  if (add_bos) add(*parts.bos);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (add_eos) add(*parts.eos);
  Json pair = single;
  for (Json piece : single) {
    if (piece.contains("Sequence")) piece["Sequence"] = {{"id", "B"}, {"type_id", 1}};
    if (piece.contains("SpecialToken")) piece["SpecialToken"]["type_id"] = 1;
    pair.push_back(piece);
  }
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", table}};
}

}  // namespace

Json tokenizer_json_of(const TokenizerParts& parts) {
  check_parts(parts);
  const Family family = family_of(parts);
  Json vocabulary = Json::object();
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    const bool fresh = vocabulary.emplace(parts.tokens[id], id).second;
    VALIDATE(fresh, ExitCode::bad_data, parts.source, ": the token \"", parts.tokens[id],
             "\" stands twice in tokenizer.ggml.tokens: the file is damaged");
  }
  Json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false}};
  model["ignore_merges"] = family.ignore_merges;
  model["vocab"] = std::move(vocabulary);
  model["merges"] = parts.merges;
  Json json = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  json["added_tokens"] = added_tokens(parts);
  json["normalizer"] = family.normalizer;
  json["pre_tokenizer"] = family.pre_tokenizer;
  json["post_processor"] = post_processor(parts, family.add_bos);
  json["decoder"] = byte_level(true);
  json["model"] = std::move(model);
  return json;
}

Json tokenizer_config_of(const TokenizerParts& parts) {
  check_parts(parts);
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false}};
  for (const auto& [name, id] : {std::pair{"bos_token", parts.bos},
                                 {"eos_token", parts.eos},
                                 {"pad_token", parts.pad},
                                 {"unk_token", parts.unk}}) {
    if (id) config[name] = parts.tokens[static_cast<size_t>(*id)];
  }
  if (!parts.chat_template.empty()) config["chat_template"] = parts.chat_template;
  return config;
}

void write_tokenizer(const TokenizerParts& parts, const std::filesystem::path& folder) {
  Tokenizer::from_parts(parts);  // throws where load() would not take the files
  base::write_file_atomically(folder / "tokenizer.json", tokenizer_json_of(parts).dump());
  base::write_file_atomically(folder / "tokenizer_config.json",
                              tokenizer_config_of(parts).dump(2) + "\n");
}

}  // namespace trireme::text
