#include <algorithm>
#include <charconv>
#include <filesystem>

#include "text/tokenizer_files.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/foreign_file.hpp"

namespace trireme::text {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t largest_side_file = uint64_t{16} << 20;
constexpr const char* single_names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

Json read_if_there(const fs::path& file) {
  if (!fs::exists(file)) return Json();
  Json json = read_json_file(file.string(), largest_side_file);
  VALIDATE(json.is_object(), ExitCode::bad_data, file.string(), ": not a JSON object but ",
           kind_of(json), ": replace the file");
  return json;
}

// A special token is a text or an object with `content`; "" when there is none.
std::string token_text(const Json& json, const std::string& name, const std::string& where) {
  if (json.is_null()) return "";
  if (json.is_string()) return json.get<std::string>();
  if (json.is_object() && json.contains("content") && json["content"].is_string())
    return json["content"].get<std::string>();
  throw UserError(ExitCode::bad_data, where + ": " + name + " is " + kind_of(json) +
                                          ", expected a text: the file is damaged");
}

class SpecialTokenReader {
 public:
  SpecialTokenReader(const SideFiles& files, TokenizerModel& model) : files_(files), model_(model) {
    const bool in_config = files.tokenizer_config.is_object();
    where_ = files.folder + (in_config ? "/tokenizer_config.json" : "/special_tokens_map.json");
  }

  SpecialTokenNames run() {
    read_added_tokens_decoder();
    for (const char* name : single_names) read_single(name);
    read_additional();
    names_.bos = id_of("bos_token");
    names_.eos = id_of("eos_token");
    names_.pad = id_of("pad_token");
    read_eos_ids();
    read_template();
    return std::move(names_);
  }

 private:
  // The value of a key in tokenizer_config.json, else in special_tokens_map.json; null when neither
  // has it.
  Json find(const char* key) const {
    for (const Json* json : {&files_.tokenizer_config, &files_.special_tokens_map}) {
      if (!json->is_object()) continue;
      const auto found = json->find(key);
      if (found != json->end() && !found->is_null()) return *found;
    }
    return Json();
  }
  bool is_added(const std::string& content) const {
    return std::any_of(model_.added.begin(), model_.added.end(),
                       [&](const AddedToken& t) { return t.content == content; });
  }
  // HF adds named special tokens that tokenizer.json does not list.
  void add_named(const std::string& content, const std::string& name) {
    if (is_added(content)) return;
    const auto id = model_.vocabulary.find(content);
    VALIDATE(id.has_value(), ExitCode::bad_data, where_, ": ", name, " is \"", content,
             "\", which the vocabulary does not have: correct the name or add the token to "
             "tokenizer.json");
    model_.added.push_back({.content = content, .id = *id, .special = true});
    model_.vocabulary.mark_special(*id);
  }
  void read_single(const char* name) {
    const std::string content = token_text(find(name), name, where_);
    if (content.empty()) return;
    add_named(content, name);
    names_.texts[name] = content;
  }
  void read_additional() {
    const Json list = find("additional_special_tokens");
    if (list.is_null()) return;
    VALIDATE(list.is_array(), ExitCode::bad_data, where_,
             ": additional_special_tokens is no list: the file is damaged");
    for (const Json& token : list) {
      const std::string content = token_text(token, "additional_special_tokens", where_);
      if (!content.empty()) add_named(content, "additional_special_tokens");
    }
  }
  void read_added_tokens_decoder() {
    const Json table = find("added_tokens_decoder");
    if (!table.is_object()) return;
    for (const auto& [key, token] : table.items()) {
      int64_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      VALIDATE(error == std::errc() && end == key.data() + key.size(), ExitCode::bad_data, where_,
               ": added_tokens_decoder has the key \"", key,
               "\", expected a token id: the file is damaged");
      const AddedToken added = text::read_added_token(token, id, model_.vocabulary, where_);
      if (!is_added(added.content)) model_.added.push_back(added);
    }
  }
  std::optional<TokenId> id_of(const char* name) const {
    const auto text = names_.texts.find(name);
    return text == names_.texts.end() ? std::nullopt : model_.vocabulary.find(text->second);
  }
  void read_eos_ids() {
    if (names_.eos) names_.eos_ids.push_back(*names_.eos);
    if (files_.generation_config.is_object() && files_.generation_config.contains("eos_token_id")) {
      const Json& eos = files_.generation_config["eos_token_id"];
      if (eos.is_array()) {
        for (const Json& id : eos) add_eos(id);
      } else if (!eos.is_null()) {
        add_eos(eos);
      }
    }
    std::sort(names_.eos_ids.begin(), names_.eos_ids.end());
    names_.eos_ids.erase(std::unique(names_.eos_ids.begin(), names_.eos_ids.end()),
                         names_.eos_ids.end());
  }
  void add_eos(const Json& json) {
    const int64_t id = read_integer(json, "eos_token_id", files_.generation_file);
    VALIDATE(id >= 0 && id < model_.vocabulary.size(), ExitCode::bad_data, files_.generation_file,
             ": eos_token_id ", id, " is outside the vocabulary of ", model_.vocabulary.size(),
             " tokens: the files do not belong together");
    names_.eos_ids.push_back(static_cast<TokenId>(id));
  }
  void read_template() {
    std::string source = files_.folder + "/chat_template.jinja";
    std::optional<std::string> text = files_.template_file_text;
    if (!text) {
      source = files_.folder + "/tokenizer_config.json (chat_template)";
      text = template_in_config();
    }
    if (!text) return;
    try {
      names_.chat_template.emplace(*text, source);
    } catch (const UserError& error) {  // matters only to those who render conversations
      names_.template_error = error.what();
    }
  }
  // A text, or a list of named templates of which `default` counts.
  std::optional<std::string> template_in_config() {
    if (!files_.tokenizer_config.is_object()) return std::nullopt;
    const auto found = files_.tokenizer_config.find("chat_template");
    if (found == files_.tokenizer_config.end() || found->is_null()) return std::nullopt;
    if (found->is_string()) return found->get<std::string>();
    if (found->is_array()) {
      for (const Json& entry : *found) {
        const bool is_default =
            entry.is_object() && entry.contains("name") && entry["name"] == "default";
        if (is_default && entry.contains("template") && entry["template"].is_string())
          return entry["template"].get<std::string>();
      }
    }
    names_.template_error =
        where_ + ": chat_template is neither a text nor a list with a template named default";
    return std::nullopt;
  }

  const SideFiles& files_;
  TokenizerModel& model_;
  std::string where_;
  SpecialTokenNames names_;
};

}  // namespace

SideFiles read_side_files(const std::string& folder) {
  const fs::path path(folder);
  SideFiles files;
  files.folder = folder;
  files.tokenizer_config = read_if_there(path / "tokenizer_config.json");
  files.special_tokens_map = read_if_there(path / "special_tokens_map.json");
  const bool own = fs::exists(path / "generation_config.json");
  files.generation_file = (path / (own ? "generation_config.json" : "config.json")).string();
  files.generation_config = read_if_there(files.generation_file);
  const fs::path template_file = path / "chat_template.jinja";
  if (fs::exists(template_file)) {
    files.template_file_text = base::read_file(template_file, largest_side_file);
    base::refuse_foreign_file(*files.template_file_text, template_file, base::Expected::text);
  }
  return files;
}

SpecialTokenNames read_special_tokens(const SideFiles& files, TokenizerModel& model) {
  return SpecialTokenReader(files, model).run();
}

}  // namespace trireme::text
