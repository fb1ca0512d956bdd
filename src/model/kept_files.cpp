#include "trireme/model/kept_files.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <system_error>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/foreign_file.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/model/safetensors.hpp"

namespace trireme::model {
namespace fs = std::filesystem;

namespace {

constexpr const char* templates_folder = "additional_chat_templates";
constexpr uintmax_t small_bytes = uintmax_t{16} << 20;
// Of what a tokenizer needs: without it an export has no use. Llama 3.2 has 17 MB.
constexpr uintmax_t tokenizer_bytes = uintmax_t{256} << 20;
constexpr size_t most_shown = 30;

constexpr std::array kept_endings{".json", ".jinja", ".md", ".py"};
constexpr std::array kept_beginnings{"license", "notice"};
constexpr std::array tokenizer_beginnings{
    "tokenizer", "tokenization_",      "vocab.",        "merges.",        "added_tokens.",
    "spiece.",   "special_tokens_map", "chat_template", "sentencepiece.", "tekken."};
constexpr std::array tokenizer_endings{".tiktoken", ".bpe.model"};
// They describe weights of another form, as adapters or quantised ones, which are not there.
constexpr std::array of_other_weights{"adapter_config.json", "quantize_config.json",
                                      "quant_config.json", "hf_quant_config.json"};

template <size_t size>
bool begins_with(const std::string& name, const std::array<const char*, size>& list) {
  return std::any_of(list.begin(), list.end(),
                     [&](const char* one) { return name.starts_with(one); });
}
template <size_t size>
bool ends_with(const std::string& name, const std::array<const char*, size>& list) {
  return std::any_of(list.begin(), list.end(),
                     [&](const char* one) { return name.ends_with(one); });
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool is_tokenizer_file(const std::string& name) {
  return begins_with(name, tokenizer_beginnings) || ends_with(name, tokenizer_endings) ||
         name == templates_folder;
}

bool is_kept(const std::string& name) {
  return is_tokenizer_file(name) || ends_with(name, kept_endings) ||
         begins_with(lower(name), kept_beginnings);
}

bool is_index(const std::string& name, const std::string& content) {
  return name.ends_with(".json") && content.find("\"weight_map\"") != std::string::npos;
}

// Any failure with these files is one of input or output.
template <class Work>
void as_io_error(const std::string& what, const Work& work) {
  try {
    work();
  } catch (const UserError& error) {
    throw UserError(ExitCode::io_error, base::text(what, ": ", error.what()));
  } catch (const fs::filesystem_error& error) {
    throw UserError(ExitCode::io_error, base::text(what, ": ", error.what()));
  }
}

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(folder)) out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

bool same_folder(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return a == b || fs::equivalent(a, b, error);
}

}  // namespace

KeptFiles KeptFiles::read(const fs::path& model, const fs::path& tokenizer) {
  KeptFiles out;
  std::error_code error;
  const bool own_tokenizer = tokenizer.empty() || same_folder(model, tokenizer);
  as_io_error("what exports keep of a model cannot be read", [&] {
    if (fs::is_directory(model, error)) {
      out.from_ = model.string();
      out.take_folder(model, false, own_tokenizer);
    } else if (!model.empty() && model.extension() != ".gguf") {
      out.config_ = base::read_file(model);
    }
    if (own_tokenizer) return;
    out.from_ += (out.from_.empty() ? "" : " and ") + tokenizer.string();
    out.take_folder(tokenizer, true, true);
  });
  return out;
}

void KeptFiles::leave(const std::string& name, const std::string& why) {
  left_.push_back(base::text(name, " (", why, ")"));
}

void KeptFiles::take_folder(const fs::path& folder, bool tokenizer_only, bool tokenizer_too) {
  for (const fs::path& path : sorted_entries(folder)) {
    const std::string name = path.filename();
    const bool of_tokenizer = is_tokenizer_file(name);
    if (tokenizer_only && !of_tokenizer) continue;
    if (SafetensorsWriter::is_weight_file(name)) continue;  // written anew
    if (name.starts_with(".trireme-")) continue;            // notes of this program's tools
    if (of_tokenizer && !tokenizer_too) {
      leave(name, "the tokenizer is that of another folder");
      continue;
    }
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (status.type() == fs::file_type::not_found) {
      leave(name, "a link to a file that is not there");
    } else if (status.type() == fs::file_type::directory && name == templates_folder) {
      for (const fs::path& one : sorted_entries(path)) {
        if (fs::is_regular_file(one, error))
          take(one, base::text(name, "/", one.filename().string()));
      }
    } else if (status.type() == fs::file_type::directory) {
      leave(name, "a folder");
    } else if (!is_kept(name)) {
      leave(name, "of none of the kinds that are kept");
    } else if (std::find(of_other_weights.begin(), of_other_weights.end(), name) !=
               of_other_weights.end()) {
      leave(name, "it describes weights of another form");
    } else if (status.type() == fs::file_type::regular) {
      take(path, name);
    } else if (status.type() == fs::file_type::none) {
      base::throw_errno(error.value(), "look at", path);
    } else {
      leave(name, "not a regular file");
    }
  }
}

void KeptFiles::take(const fs::path& file, const std::string& name) {
  const base::FileWork work{"read", file};
  const uintmax_t most = is_tokenizer_file(file.filename()) ? tokenizer_bytes : small_bytes;
  const uintmax_t size = fs::file_size(file);
  if (size > most)
    return leave(name, base::text(base::human_bytes(static_cast<double>(size)), ", more than ",
                                  base::human_bytes(static_cast<double>(most))));
  std::string content = base::read_file(file);
  if (base::is_pointer_file(content)) return leave(name, "a pointer, as of Git LFS");
  if (is_index(name, content)) return leave(name, "an index of weights that are not copied");
  if (name == "config.json") {
    config_ = std::move(content);
  } else {
    files_.push_back({name, std::move(content)});
  }
}

bool KeptFiles::has(const std::string& name) const {
  return std::any_of(files_.begin(), files_.end(),
                     [&](const File& file) { return file.name == name; });
}

void KeptFiles::write(const fs::path& folder) const {
  as_io_error("what the export keeps of the model cannot be written", [&] {
    const bool tokenizer = std::any_of(files_.begin(), files_.end(), [](const File& file) {
      return is_tokenizer_file(file.name);
    });
    for (const fs::path& path : sorted_entries(folder)) {
      const std::string name = path.filename();
      if (tokenizer && is_tokenizer_file(name) && !has(name)) fs::remove_all(path);
    }
    for (const File& file : files_) {
      const fs::path target = folder / file.name;
      if (target.parent_path() != folder) fs::create_directories(target.parent_path());
      base::write_file_atomically(target, file.content);
    }
  });
}

std::string KeptFiles::describe() const {
  if (from_.empty()) return {};
  std::vector<std::string> names;
  for (const File& file : files_) names.push_back(file.name);
  const auto listed = [](const std::vector<std::string>& all) {
    const size_t shown = std::min(all.size(), most_shown);
    const std::string list = base::join(std::span(all).first(shown));
    return shown == all.size() ? list : base::text(list, " and ", all.size() - shown, " more");
  };
  return base::text("exports keep config.json and ", names.size(), " small files of ", from_,
                    " as they are now", names.empty() ? "" : ": " + listed(names),
                    left_.empty() ? "" : "; not copied: " + listed(left_));
}

}  // namespace trireme::model
