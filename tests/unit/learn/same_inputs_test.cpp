// By which a later start notices that the weights of the reference are others.
#include "trireme/learn/same_inputs.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/source_folder.hpp"
#include "support/world.hpp"
#include "trireme/learn/datasets.hpp"
#include "trireme/learn/file_digest.hpp"

namespace trireme::learn {
namespace {

// A file that begins as safetensors does, with a header of this size.
std::string weights(size_t header, size_t data) {
  std::string bytes(sizeof(uint64_t) + header + data, ' ');
  const uint64_t length = header;
  std::memcpy(bytes.data(), &length, sizeof length);
  for (size_t i = sizeof length; i < bytes.size(); ++i)
    bytes[i] = static_cast<char>(i * 2654435761U >> 13);
  return bytes;
}

// A folder of this process.
struct Files {
  std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("trireme-weights-" + std::to_string(::getpid()));
  Files() { std::filesystem::create_directories(folder); }
  Files(const Files&) = delete;
  ~Files() { std::filesystem::remove_all(folder); }
  std::string digest(const std::string& bytes) const {
    std::ofstream(folder / "model.safetensors", std::ios::binary) << bytes;
    return digest_of_model(folder);
  }
  void expect_seen(std::string bytes, size_t place) const {
    const std::string before = digest(bytes);
    bytes[place] = static_cast<char>(bytes[place] ^ 1);
    EXPECT_NE(digest(bytes), before) << "byte " << place << " of " << bytes.size();
  }
};

TEST(DigestOfModel, SmallFilesAreReadWhole) {
  const Files files;
  const std::string bytes = weights(1000, 1'900'000);
  for (const size_t place : {size_t{0}, size_t{9}, size_t{65535}, size_t{65536},
                             bytes.size() / 2 + 77, bytes.size() - 65537, bytes.size() - 1}) {
    files.expect_seen(bytes, place);
  }
  EXPECT_EQ(files.digest(bytes), files.digest(bytes));
  for (const size_t size : {size_t{0}, size_t{7}, size_t{8}, size_t{65536}, size_t{65537},
                            size_t{512} * 4096}) {  // of no format
    EXPECT_EQ(files.digest(std::string(size, 'x')), files.digest(std::string(size, 'x'))) << size;
    EXPECT_NE(files.digest(std::string(size, 'x')), files.digest(std::string(size + 1, 'x')))
        << size;
  }
}

TEST(DigestOfModel, OfLargeFilesTheHeaderBothEndsAndPieces) {
  const Files files;
  const std::string bytes = weights(300'000, 40'000'000);
  for (const size_t place : {size_t{9}, size_t{200'000}, size_t{300'007}, bytes.size() - 1,
                             bytes.size() / 512 * 100, bytes.size() / 512 * 511 + 4095}) {
    files.expect_seen(bytes, place);
  }
  // Training changes every tensor: one of 100 KB holds a piece, wherever it lies.
  for (size_t first = 400'000; first < 4'000'000; first += 700'001) {
    std::string trained = bytes;
    for (size_t i = first; i < first + 100'000; ++i) trained[i] = static_cast<char>(trained[i] ^ 1);
    EXPECT_NE(files.digest(trained), files.digest(bytes)) << first;
  }
  std::string lie = bytes;  // a length that the file cannot have
  std::memset(lie.data(), 0x7f, sizeof(uint64_t));
  EXPECT_EQ(files.digest(lie), files.digest(lie));
}

// What the program of 4979d5a6 wrote into a checkpoint of inputs/tutorial/tiny-sft.toml: a start of
// a newer one must not take the same files for others.
TEST(Inputs, DigestsAreThoseOfOlderCheckpoints) {
  const auto tutorial = test::source_folder() / "inputs" / "tutorial";
  config::Options options;
  options.model.shape = (tutorial / "tiny-model").string();
  options.model.tokenizer = (tutorial / "tokenizer").string();
  options.data.dataset = {(tutorial / "data" / "tiny-sft.jsonl").string()};
  options.data.max_len = 32;
  const auto tokenizer = load_tokenizer(options);
  const auto rows =
      load_training(options, options.data.dataset, config::Command::sft, tokenizer, test::world());
  EXPECT_EQ(digest_of(tokenizer), "c4f17a97f4f89a76");
  EXPECT_EQ(digest_of(config::load_model_shape(options.model.shape)), "2bfe223f33e262f8");
  EXPECT_EQ(digest_of(rows), "0fdf347dffe88c6f");
}

}  // namespace
}  // namespace trireme::learn
