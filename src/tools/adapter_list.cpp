#include "tools/adapter_list.hpp"

#include <algorithm>
#include <string_view>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/learn/file_digest.hpp"

namespace trireme::tools {
namespace {

// "math" of "math=runs/math/hf"; "" if the word is a folder alone.
std::string_view name_of(std::string_view word) {
  const std::string_view name = word.substr(0, word.find('='));
  const bool good = name.size() < word.size() && name.find('/') == std::string_view::npos;
  return good ? name : std::string_view{};
}

}  // namespace

AdapterList::AdapterList(const std::vector<std::string>& words, config::AdapterForm form)
    : form_(form) {
  for (const std::string& word : words) {
    const std::string_view name = name_of(word);
    if (!name.empty()) {
      VALIDATE(std::ranges::find(names_, name) == names_.end(), ExitCode::usage, "--adapter ", word,
               ": there is an adapter \"", name,
               "\" already (prompts name it): give it another "
               "name");
      names_.emplace_back(name);
    }
    folders_.emplace_back(std::string(name.empty() ? word : word.substr(name.size() + 1)));
    VALIDATE(words.size() == 1 || names_.size() == folders_.size(), ExitCode::usage, "--adapter ",
             word,
             " has no name (each prompt says by its column `adapter` which of several it "
             "has): write NAME=",
             word);
  }
  VALIDATE(names_.empty() || form == config::AdapterForm::apart, ExitCode::usage, "--adapter-as ",
           config::to_string(form),
           " with adapters by name (they share the model's weights in one batch): leave it out, or "
           "give one folder");
}

model::AdaptedModel AdapterList::open(const std::filesystem::path& model) const {
  if (!names_.empty()) return model::open_with_adapters(model, folders_, model::HeadKind::language);
  return model::open_adapted(model, folders_.empty() ? std::filesystem::path{} : folders_.front(),
                             form_, model::HeadKind::language);
}

int32_t AdapterList::number_of(const data::InputRecord& prompt) const {
  if (names_.empty() || !prompt.adapter) return -1;
  const auto found = std::ranges::find(names_, *prompt.adapter);
  VALIDATE(found != names_.end(), ExitCode::bad_data, prompt.where, ": adapter \"", *prompt.adapter,
           "\" is not one of --adapter (", base::join(names_),
           "): correct the name, or leave it out for the model alone");
  return static_cast<int32_t>(found - names_.begin());
}

void AdapterList::add_to(ToolJob& job) const {
  for (size_t i = 0; i < folders_.size(); ++i) {
    const std::string name = names_.empty() ? "" : base::text(names_[i], "=");
    job.emplace_back("adapter", base::text(name, learn::digest_of_model(folders_[i]), " ",
                                           learn::digest_of_descriptions(folders_[i])));
  }
  if (!folders_.empty()) job.emplace_back("adapter-as", std::string(config::to_string(form_)));
}

}  // namespace trireme::tools
