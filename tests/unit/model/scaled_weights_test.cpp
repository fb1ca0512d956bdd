// Weights of 8 bits with scales: whole tensors and parts of them, in every form of scales, and what
// does not fit together. tests/interop/folders.py compares models of such weights with torch.
#include "model/scaled_weights.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "scratch.hpp"
#include "trireme/base/text.hpp"
#include "trireme/model/safetensors.hpp"

namespace trireme::model {
namespace {

using test::Scratch;
using ::testing::HasSubstr;

struct Tensor {
  std::string name, type;
  std::vector<int64_t> shape;
  std::string bytes;
};

std::shared_ptr<const WeightSource> file_of(const Scratch& scratch,
                                            const std::vector<Tensor>& tensors) {
  std::string header = "{", data;
  for (const Tensor& tensor : tensors) {
    std::vector<std::string> sizes;
    for (const int64_t size : tensor.shape) sizes.push_back(std::to_string(size));
    header +=
        base::text(header.size() > 1 ? "," : "", '"', tensor.name, R"(":{"dtype":")", tensor.type,
                   R"(","shape":[)", base::join(sizes, ","), R"(],"data_offsets":[)", data.size(),
                   ",", data.size() + tensor.bytes.size(), "]}");
    data += tensor.bytes;
  }
  header += "}";
  const uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  scratch.write("w.safetensors", file + header + data);
  return std::make_shared<SafetensorsSource>(scratch / "w.safetensors");
}

// Bytes of no NaN.
Tensor weights(int64_t height, int64_t width) {
  std::mt19937 draw(1);
  Tensor out{"q.weight", "F8_E4M3", {height, width}, {}};
  for (int64_t i = 0; i < height * width; ++i) {
    const auto byte = static_cast<char>(draw() & 0xFFu);
    out.bytes.push_back((byte & 0x7F) == 0x7F ? '\x3C' : byte);
  }
  return out;
}

Tensor scales(std::vector<int64_t> shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  Tensor out{"q.weight_scale_inv", "F32", std::move(shape), {}};
  for (int64_t i = 0; i < count; ++i) {
    const float value = 0.01f + 0.003f * static_cast<float>(i);
    out.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return out;
}

std::vector<float> read(const WeightSource& source, const base::Block& block) {
  std::vector<float> out(static_cast<size_t>(block.elements()));
  source.read("q.weight", block, out.data());
  return out;
}

// `each_rows` x `each_columns` elements have one scale.
void expect_products(const std::vector<int64_t>& scale_shape, config::Fp8Weights config,
                     int64_t each_rows, int64_t each_columns) {
  constexpr int64_t height = 10, width = 13;
  const Scratch scratch;
  const Tensor scale = scales(scale_shape);
  const auto raw = file_of(
      scratch,
      {weights(height, width), scale, {"q.activation_scale", "F32", {}, std::string(4, '\0')}});
  const auto source = with_scales(raw, config);
  EXPECT_EQ(source->names(), std::vector<std::string>{"q.weight"});
  std::vector<std::byte> copied(height * width);
  EXPECT_FALSE(source->copy("q.weight", {0, height, 0, width}, StoredType::f8_e4m3, copied.data()));
  const auto whole = read(*source, {0, height, 0, width});
  const auto stored = read(*raw, {0, height, 0, width});
  const int64_t across = (width + each_columns - 1) / each_columns;
  for (int64_t r = 0; r < height; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      float factor = 0;
      const auto at = static_cast<size_t>(r / each_rows * across + c / each_columns);
      std::memcpy(&factor, scale.bytes.data() + at * sizeof factor, sizeof factor);
      const auto i = static_cast<size_t>(r * width + c);
      ASSERT_EQ(whole[i], stored[i] * factor) << r << ", " << c;
    }
  }
  for (const base::Block& part : {base::Block{3, 5, 4, 7}, base::Block{9, 1, 12, 1},
                                  base::Block{0, 4, 0, 13}, base::Block{2, 0, 0, 13}}) {
    const auto found = read(*source, part);
    for (int64_t r = 0; r < part.rows; ++r) {
      for (int64_t c = 0; c < part.columns; ++c)
        ASSERT_EQ(found[static_cast<size_t>(r * part.columns + c)],
                  whole[static_cast<size_t>((part.row + r) * width + part.column + c)]);
    }
  }
}

TEST(ScaledWeights, EveryFormOfScales) {
  expect_products({3, 4}, {4, 4}, 4, 4);      // blocks, the last ones smaller
  expect_products({1, 7}, {128, 2}, 128, 2);  // one block of height
  expect_products({1}, {}, 10, 13);
  expect_products({}, {4, 4}, 10, 13);
  expect_products({10, 1}, {}, 1, 13);  // a row each
}

TEST(ScaledWeights, WithoutScales) {
  const Scratch scratch;
  const auto raw = file_of(scratch, {weights(2, 3)});
  EXPECT_EQ(with_scales(raw, std::nullopt), raw);  // 8 bits are the values
}

TEST(ScaledWeights, WhatDoesNotFitIsRefused) {
  const Scratch scratch;
  const auto refusal = [&](const std::vector<Tensor>& tensors,
                           std::optional<config::Fp8Weights> config) {
    return test::error_of(ExitCode::bad_data,
                          [&] { with_scales(file_of(scratch, tensors), config); });
  };
  EXPECT_THAT(refusal({weights(10, 13), scales({3, 3})}, config::Fp8Weights{4, 4}),
              HasSubstr("in blocks of 4 x 4"));
  EXPECT_THAT(refusal({weights(10, 13), scales({5})}, config::Fp8Weights{}),
              HasSubstr("q.weight_scale_inv' has the shape"));
  EXPECT_THAT(refusal({weights(10, 13)}, config::Fp8Weights{4, 4}),
              HasSubstr("no 'q.weight_scale_inv'"));
  EXPECT_THAT(refusal({weights(10, 13), scales({1})}, std::nullopt),
              HasSubstr("config.json says nothing"));
  Tensor other = scales({1});
  other.name = "q.weight_scale";
  EXPECT_THAT(refusal({weights(10, 13), other}, std::nullopt),
              HasSubstr("config.json says nothing"));
}

}  // namespace
}  // namespace trireme::model
