// The small files beside a model's weights, which exports of it keep as they came.
//
// They are read when a run or a conversion starts and written at its end, which may be days later:
// by then the folder may have changed, or be gone, or lie on a disk that does not answer.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::model {

class KeptFiles {
 public:
  KeptFiles() = default;  // none

  // Reads `model`, a model's folder (or its config.json, of which only that is kept; a .gguf file
  // or "" has none), and of `tokenizer` (a folder; "" for the same one) the files of the tokenizer,
  // which then replace the model's. Links are followed. One process. Throws UserError(io_error)
  // naming the file that cannot be read, input_missing where a folder is not there.
  static KeptFiles read(const std::filesystem::path& model, const std::filesystem::path& tokenizer);

  // The text of config.json; "" where there was none.
  const std::string& config() const { return config_; }
  bool has(const std::string& name) const;
  // All but config.json, into an existing folder, each by rename; tokenizer files of an older model
  // there go. Throws UserError(io_error).
  void write(const std::filesystem::path& folder) const;
  // "keeps 7 small files of DIR; not copied: pytorch_model.bin (...), x.png (...)"
  std::string describe() const;

 private:
  struct File {
    std::string name;  // relative to the folder
    std::string content;
  };
  void take(const std::filesystem::path& file, const std::string& name);
  void take_folder(const std::filesystem::path& folder, bool tokenizer_only, bool tokenizer_too);
  void leave(const std::string& name, const std::string& why);

  std::string from_;
  std::string config_;
  std::vector<File> files_;
  std::vector<std::string> left_;  // "name (why)"
};

}  // namespace trireme::model
