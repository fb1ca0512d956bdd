// What an export keeps of the folder that its model came from.
#include "trireme/model/kept_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "scratch.hpp"
#include "trireme/base/files.hpp"

namespace trireme::model {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::Scratch;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) out.push_back(fs::relative(entry.path(), folder).string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

class Kept : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(scratch_ / "from/additional_chat_templates");
    fs::create_directories(scratch_ / "from/onnx");
    fs::create_directories(scratch_ / "blobs");
    fs::create_directories(scratch_ / "to");
  }
  void from(const std::string& name, const std::string& content = "x") const {
    scratch_.write("from/" + name, content);
  }
  KeptFiles read(const std::string& tokenizer = "") const {
    return KeptFiles::read(scratch_ / "from",
                           tokenizer.empty() ? fs::path() : scratch_ / tokenizer);
  }
  std::vector<std::string> written(const KeptFiles& kept) const {
    kept.write(scratch_ / "to");
    return files_in(scratch_ / "to");
  }
  const Scratch scratch_;
};

TEST_F(Kept, SmallFilesOfAModelAndNothingElse) {
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "vocab.json",
        "merges.txt", "chat_template.jinja", "additional_chat_templates/tools.jinja", "README.md",
        "LICENSE", "LICENSE-2.0.txt", "license.txt", "NOTICE", "modeling_x.py", "spiece.model",
        "qwen.tiktoken"})
    from(name, name);
  for (const char* name :
       {"model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin",
        "consolidated.safetensors", "a.gguf", "picture.png", "onnx/config.json",
        "training_args.bin", "adapter_config.json", "hf_quant_config.json"})
    from(name);
  from("model.safetensors.index.json", R"({"weight_map": {}})");
  from("model.safetensors.index.fp16.json", R"({"metadata": {}, "weight_map": {"a": "b"}})");
  from("pytorch_model.bin.index.json", R"({"weight_map": {}})");
  const KeptFiles kept = read();
  EXPECT_EQ(kept.config(), "config.json");
  EXPECT_THAT(written(kept),
              ElementsAre("LICENSE", "LICENSE-2.0.txt", "NOTICE", "README.md",
                          "additional_chat_templates/tools.jinja", "chat_template.jinja",
                          "generation_config.json", "license.txt", "merges.txt", "modeling_x.py",
                          "qwen.tiktoken", "spiece.model", "tokenizer.json", "tokenizer.model",
                          "vocab.json"));
  EXPECT_EQ(base::read_file(scratch_ / "to/README.md"), "README.md");
  for (const char* name :
       {"pytorch_model.bin (", "consolidated.safetensors (", "a.gguf (", "picture.png (",
        "onnx (a folder)", "training_args.bin (", "adapter_config.json (", "hf_quant_config.json (",
        "model.safetensors.index.fp16.json (an index", "pytorch_model.bin.index.json (an index"})
    EXPECT_THAT(kept.describe(), HasSubstr(name));
  EXPECT_THAT(kept.describe(), Not(HasSubstr(" model.safetensors (")));
}

TEST_F(Kept, LinksAreFollowed) {
  scratch_.write("blobs/aa", "of the cache");
  fs::create_symlink(scratch_ / "blobs/aa", scratch_ / "from/README.md");
  fs::create_symlink(scratch_ / "blobs/bb", scratch_ / "from/notes.md");
  ::mkfifo((scratch_ / "from/pipe.json").c_str(), 0600);
  const KeptFiles kept = read();
  EXPECT_THAT(written(kept), ElementsAre("README.md"));
  EXPECT_FALSE(fs::is_symlink(scratch_ / "to/README.md"));
  EXPECT_EQ(base::read_file(scratch_ / "to/README.md"), "of the cache");
  EXPECT_THAT(kept.describe(), AllOf(HasSubstr("notes.md (a link to a file that is not there)"),
                                     HasSubstr("pipe.json (not a regular file)")));
}

TEST_F(Kept, LargeFilesAreListedButATokenizerIsNeeded) {
  from("labels.json");
  from("tokenizer.json");
  from("small.json");
  fs::resize_file(scratch_ / "from/labels.json", (16 << 20) + 1);
  fs::resize_file(scratch_ / "from/small.json", 16 << 20);
  fs::resize_file(scratch_ / "from/tokenizer.json", 17'209'920);  // of Llama 3.2
  const KeptFiles kept = read();
  EXPECT_THAT(written(kept), ElementsAre("small.json", "tokenizer.json"));
  EXPECT_THAT(kept.describe(), HasSubstr("labels.json (16.0 MiB, more than 16.0 MiB)"));
}

TEST_F(Kept, PointersOfLfsAreNotKept) {
  from("vocab.json", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
  EXPECT_THAT(read().describe(), HasSubstr("vocab.json (a pointer, as of Git LFS)"));
  EXPECT_FALSE(read().has("vocab.json"));
}

TEST_F(Kept, AnotherTokenizerReplacesTheModelsOwn) {
  for (const char* name : {"tokenizer.json", "added_tokens.json", "chat_template.jinja",
                           "additional_chat_templates/a.jinja", "README.md"})
    from(name, "model");
  fs::create_directories(scratch_ / "tokenizer");
  scratch_.write("tokenizer/tokenizer.json", "other");
  scratch_.write("tokenizer/README.md", "other");
  const KeptFiles kept = read("tokenizer");
  EXPECT_THAT(written(kept), ElementsAre("README.md", "tokenizer.json"));
  EXPECT_EQ(base::read_file(scratch_ / "to/tokenizer.json"), "other");
  EXPECT_EQ(base::read_file(scratch_ / "to/README.md"), "model");
  EXPECT_THAT(kept.describe(), HasSubstr("added_tokens.json (the tokenizer is that of another"));
}

TEST_F(Kept, StaysWhatItWasWhenTheFolderChangesOrGoes) {
  from("README.md", "before");
  from("config.json", "{}");
  const KeptFiles kept = read();
  fs::remove_all(scratch_ / "from");
  EXPECT_THAT(written(kept), ElementsAre("README.md"));
  EXPECT_EQ(base::read_file(scratch_ / "to/README.md"), "before");
  EXPECT_EQ(kept.config(), "{}");
}

TEST_F(Kept, TokenizerFilesOfAnOlderModelGo) {
  from("tokenizer.json", "new");
  scratch_.write("to/added_tokens.json", "old");
  scratch_.write("to/tokenizer.json", "old");
  scratch_.write("to/notes.txt", "mine");
  EXPECT_THAT(written(read()), ElementsAre("notes.txt", "tokenizer.json"));
  EXPECT_EQ(base::read_file(scratch_ / "to/tokenizer.json"), "new");
}

TEST_F(Kept, ACopyThatFailsIsAnInputOutputError) {
  from("README.md");
  const KeptFiles kept = read();
  EXPECT_THAT(error_of(ExitCode::io_error, [&] { kept.write(scratch_ / "gone"); }),
              HasSubstr("what the export keeps of the model cannot be written"));
  fs::create_directories(scratch_ / "to/README.md/x");
  EXPECT_THAT(error_of(ExitCode::io_error, [&] { kept.write(scratch_ / "to"); }),
              HasSubstr("README.md"));
  error_of(ExitCode::io_error,
           [&] { KeptFiles::read(scratch_ / "from", scratch_ / "no-tokenizer"); });
  if (::geteuid() == 0) return;  // who may read everything
  ::chmod((scratch_ / "from/README.md").c_str(), 0);
  EXPECT_THAT(error_of(ExitCode::io_error, [&] { read(); }), HasSubstr("README.md"));
}

TEST_F(Kept, OfAShapeOnlyItsConfig) {
  from("config.json", "{\"a\": 1}");
  from("README.md");
  const KeptFiles kept = KeptFiles::read(scratch_ / "from/config.json", {});
  EXPECT_EQ(kept.config(), "{\"a\": 1}");
  EXPECT_TRUE(written(kept).empty());
  EXPECT_EQ(kept.describe(), "");
  EXPECT_EQ(KeptFiles::read("m.gguf", {}).config(), "");
}

}  // namespace
}  // namespace trireme::model
