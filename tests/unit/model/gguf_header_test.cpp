// Crafted GGUF headers: every number is checked, under its key, before anything is computed from
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "gguf_builder.hpp"
#include "trireme/model/gguf.hpp"

namespace trireme::model {
namespace {

using test::error_of;
using test::gguf_text;
using test::GgufBuilder;
using test::raw;
using test::Scratch;
using testing::AllOf;
using testing::HasSubstr;

constexpr uint32_t signed_64 = 11;

// A header that is good but for the key `without`, which is left to the test, and the matrix that
// the vocabulary is taken from.
GgufBuilder header(const std::string& without = "") {
  GgufBuilder file;
  file.word("general.architecture", "llama");
  const std::map<std::string, uint32_t> sizes{{"llama.embedding_length", 8},
                                              {"llama.block_count", 1},
                                              {"llama.feed_forward_length", 8},
                                              {"llama.attention.head_count", 1},
                                              {"llama.context_length", 16}};
  for (const auto& [key, value] : sizes) {
    if (key != without) file.integer(key, value);
  }
  for (const std::string key : {"llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"}) {
    if (key != without) file.real(key, 1);
  }
  file.tensor("token_embd.weight", {8, 4}, 0, std::string(128, '\0'));
  return file;
}

std::string refused(const GgufBuilder& file) {
  const Scratch scratch;
  const auto path = scratch.write("m.gguf", file.build());
  return error_of(ExitCode::bad_data, [&] { GgufFile open(path); });
}

std::string refused(const std::string& key, int64_t value) {
  GgufBuilder file = header(key);
  file.entry(key, signed_64, raw(value));
  return refused(file);
}

TEST(GgufHeader, the_header_is_good) {
  const Scratch scratch;
  const GgufFile file(scratch.write("m.gguf", header().build()));
  EXPECT_EQ(file.shape().head_dim, 8);
  EXPECT_EQ(file.shape().vocab, 4);
}

TEST(GgufHeader, sizes) {
  for (const std::string key :
       {"llama.attention.key_length", "llama.embedding_length", "llama.block_count",
        "llama.feed_forward_length", "llama.attention.head_count", "llama.attention.head_count_kv",
        "llama.context_length"}) {
    for (const int64_t value : {int64_t{0}, int64_t{-2}, int64_t{1} << 33, INT64_MIN, INT64_MAX}) {
      EXPECT_THAT(refused(key, value), AllOf(HasSubstr("m.gguf: the metadata key "),
                                             HasSubstr(key + " is " + std::to_string(value))));
    }
  }
  EXPECT_THAT(refused("llama.attention.key_length", 1),
              HasSubstr("heads of 1 elements (llama.attention.key_length)"));
  EXPECT_THAT(refused("llama.attention.head_count", 3),
              HasSubstr("is not a multiple of llama.attention.head_count 3"));
}

TEST(GgufHeader, factors_of_the_rotary_embedding) {
  for (const int64_t key_length : {0, 1, 8, -2}) {
    for (const uint64_t factors : {0u, 3u}) {
      GgufBuilder file = header();
      file.entry("llama.attention.key_length", signed_64, raw(key_length));
      file.tensor("rope_freqs.weight", {factors}, 0, std::string(factors * 4, '\0'));
      EXPECT_THAT(refused(file), HasSubstr(factors == 0 ? "'rope_freqs.weight' has a dimension of 0"
                                           : key_length == 8 ? "is not F32 [4]"
                                                             : "key_length"));
    }
  }
}

TEST(GgufHeader, reals) {
  for (const std::string key : {"llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base",
                                "llama.rope.scaling.factor"}) {
    for (const float value : {0.f, -1.f, NAN, INFINITY}) {
      GgufBuilder file = header(key);
      file.word("llama.rope.scaling.type", "linear");
      file.real(key, value);
      EXPECT_THAT(refused(file), HasSubstr("m.gguf: the metadata key " + key + " is ")) << value;
    }
  }
}

TEST(GgufHeader, ids_of_tokens) {
  for (const std::string key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                "tokenizer.ggml.eot_token_id", "tokenizer.ggml.padding_token_id"}) {
    for (const int64_t value : {int64_t{-1}, int64_t{1} << 40}) {
      EXPECT_THAT(refused(key, value),
                  HasSubstr("m.gguf: the metadata key " + key + " is " + std::to_string(value)));
    }
    EXPECT_THAT(refused(key, 4), AllOf(HasSubstr("m.gguf"), HasSubstr("is 4 (the vocabulary has")))
        << "beyond the matrix";
  }
  GgufBuilder types = header();
  types.entry("tokenizer.ggml.token_type", 9,
              raw(signed_64) + raw(uint64_t{1}) + raw(int64_t{1} << 40));
  EXPECT_THAT(refused(types),
              HasSubstr("m.gguf: the metadata key tokenizer.ggml.token_type holds 1099511627776"));
}

// A file that is mostly a hole costs nobody anything; what is read from its header takes memory.
TEST(GgufHeader, its_length_is_limited) {
  const Scratch scratch;
  const auto path = scratch.write(
      "m.gguf", std::string("GGUF") + raw(uint32_t{3}) + raw(uint64_t{0}) + raw(uint64_t{1}) +
                    gguf_text("x") + raw(uint32_t{9}) + raw(uint32_t{0}) + raw(uint64_t{1} << 31));
  std::filesystem::resize_file(path, uint64_t{1} << 32);
  EXPECT_THAT(error_of(ExitCode::bad_data, [&] { GgufFile open(path); }),
              HasSubstr("2147483648 array elements"));
}

}  // namespace
}  // namespace trireme::model
