// Samples, rows and folders that tests of learn and driver share.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/source_folder.hpp"
#include "support/world.hpp"
#include "trireme/base/samples.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::test {

inline std::filesystem::path tokenizer_folder() {
  return source_folder() / "inputs/tutorial/tokenizer";
}
inline const text::Tokenizer& tokenizer() {
  static const auto tokenizer = text::Tokenizer::load(tokenizer_folder());
  return tokenizer;
}

// A data set of these lines; written by each rank for itself, over those of the call before.
inline data::SetOptions lines(const std::string& text) {
  struct File {
    std::filesystem::path path = std::filesystem::temp_directory_path() /
                                 base::text("trireme-driver-rows-", getpid(), ".jsonl");
    ~File() { std::filesystem::remove(path); }
  };
  static const File file;
  std::ofstream(file.path) << text;
  data::SetOptions options;
  options.files = {file.path};
  return options;
}

// A folder of all ranks, removed at the end. Construction and destruction are collective.
class SharedFolder {
 public:
  SharedFolder()
      : path_(std::filesystem::temp_directory_path() /
              base::text("trireme-driver-", world().broadcast_value(getpid(), 0))) {
    if (world().rank() == 0) std::filesystem::create_directories(path_);
    world().barrier();
  }
  ~SharedFolder() {
    world().barrier();
    if (world().rank() == 0) std::filesystem::remove_all(path_);
  }
  SharedFolder(const SharedFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// `count` sequences whose lengths and tokens follow from their ids.
inline Samples samples_of(const std::vector<uint64_t>& ids) {
  Samples samples;
  for (const uint64_t id : ids) {
    const auto length = static_cast<size_t>(3 + id % 17);
    samples.id.push_back(id);
    samples.prompt_row.push_back(static_cast<int64_t>(id));
    samples.prompt_len.push_back(2);
    samples.finish_reason.push_back(FinishReason::stop);
    for (size_t t = 0; t < length; ++t) {
      samples.ids.push_back(static_cast<int32_t>(100 * id + t));
      samples.action_mask.push_back(t >= 2);
      samples.log_probs.push_back(-static_cast<float>(t));
      samples.version.push_back(1);
    }
    samples.cu_seqlens.push_back(static_cast<int64_t>(samples.ids.size()));
  }
  return samples;
}

}  // namespace trireme::test
