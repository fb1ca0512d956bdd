// A small model's checkpoint on any number of ranks: values are a function of (dataset, element),
// so a reader at another rank count knows what to expect.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "support/world.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/shard_layout.hpp"
#include "trireme/checkpoint/reader.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint {

// A folder of this test that all ranks see, removed at the end. Collective.
class SharedFolder {
 public:
  explicit SharedFolder(const comm::CommView& comm = test::world(), const std::string& below = "")
      : comm_(comm) {
    std::string name;
    if (comm.rank() == 0) {
      const char* base = std::getenv("TRIREME_BINARY_DIR");
      std::string pattern =
          below.empty()
              ? (std::filesystem::path(base ? base : ".") / "checkpoint_test.XXXXXX").string()
              : below + "/t.XXXXXX";
      name = ::mkdtemp(pattern.data());
    }
    path_ = comm.broadcast(name, 0);
  }
  ~SharedFolder() {
    comm_.barrier();
    if (comm_.rank() == 0) std::filesystem::remove_all(path_);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  comm::CommView comm_;
  std::filesystem::path path_;
};

struct TestTensor {
  base::TensorSpec spec;
  comm::DType type;
};

inline std::vector<TestTensor> test_tensors() {
  using comm::DType;
  return {{{"/actor/weight/model.embed_tokens.weight", {1031, 96}}, DType::f32},
          {{"/actor/weight/model.layers.0.self_attn.q_proj.weight", {96, 96}}, DType::f32},
          {{"/actor/weight/model.layers.0.input_layernorm.weight", {96}}, DType::f32},
          {{"/actor/m/model.embed_tokens.weight", {1031, 96}}, DType::f32},
          {{"/actor/ema/model.norm.weight", {3}}, DType::bf16},
          {{"/actor/ema/big", {2500, 700}}, DType::bf16},
          {{"/counters/steps", {}}, DType::i64},
          {{"/experience/ids", {77777}}, DType::u8},
          {{"/experience/none", {0}}, DType::u8},
          {{"/critic/weight/conv", {5, 4, 3}}, DType::f64}};
}

// Byte b of element e of tensor t in save number `salt`.
inline std::byte test_byte(size_t tensor, int64_t byte, uint64_t salt) {
  const auto x = (static_cast<uint64_t>(byte) * 0x9E3779B97F4A7C15ull) ^
                 (tensor * 0xD1B54A32D192ED03ull) ^ (salt * 0x2545F4914F6CDD1Dull);
  return static_cast<std::byte>((x >> 29) & 0xff);
}

inline std::vector<std::byte> test_values(size_t tensor, const TestTensor& t,
                                          const base::Block& block, uint64_t salt) {
  const auto size = static_cast<int64_t>(comm::size_of(t.type));
  std::vector<std::byte> out;
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int64_t b = 0; b < block.columns * size; ++b) {
      out.push_back(
          test_byte(tensor, ((block.row + r) * t.spec.columns() + block.column) * size + b, salt));
    }
  }
  return out;
}

// One rank's part of the test tensors, by rows, or by columns where `by_columns`.
struct TestShards {
  Content content;
  std::vector<std::vector<std::byte>> storage;

  TestShards(int rank, int ranks, uint64_t salt, bool by_columns = false) {
    const auto tensors = test_tensors();
    for (size_t t = 0; t < tensors.size(); ++t) {
      const auto& spec = tensors[t].spec;
      base::Block block = base::ShardLayout::by_rows({spec}, ranks).block(0, rank);
      if (by_columns && spec.columns() >= ranks) {
        const int64_t begin = spec.columns() * rank / ranks;
        block = {0, spec.rows(), begin, spec.columns() * (rank + 1) / ranks - begin};
      }
      storage.push_back(test_values(t, tensors[t], block, salt));
      content.datasets.push_back(
          {spec.name, spec.shape, tensors[t].type, block, storage.back().data()});
    }
    content.state = "{\"iteration\": " + std::to_string(salt) + "}";
  }
};

// Reads this rank's part of everything and compares.
inline void expect_test_content(Reader& reader, int rank, int ranks, uint64_t salt,
                                bool by_columns = false) {
  TestShards expected(rank, ranks, salt, by_columns);
  std::vector<std::vector<std::byte>> into;
  std::vector<ReadRequest> requests;
  for (size_t t = 0; t < expected.content.datasets.size(); ++t) {
    const Dataset& d = expected.content.datasets[t];
    into.emplace_back(expected.storage[t].size());
    requests.push_back({d.path, d.shape, d.type, d.block, into.back().data()});
  }
  reader.read(requests);
  for (size_t t = 0; t < into.size(); ++t) {
    EXPECT_TRUE(into[t] == expected.storage[t])
        << expected.content.datasets[t].path << " on rank " << rank << " of " << ranks;
  }
  EXPECT_EQ(reader.state(), expected.content.state);
}

inline SaveReport save_test(const comm::CommView& comm, const std::filesystem::path& folder,
                            int64_t step, SaveOptions options = {}) {
  const TestShards shards(comm.rank(), comm.size(), static_cast<uint64_t>(step));
  return save(comm, folder, step, shards.content, options);
}

template <class F>
ExitCode code_of(F&& work, std::string* message = nullptr) {
  try {
    work();
  } catch (const UserError& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  return ExitCode::done;
}

}  // namespace trireme::checkpoint
