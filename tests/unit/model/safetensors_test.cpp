#include "torch/torch.hpp"

#include "trireme/model/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "scratch.hpp"

namespace trireme::model {
namespace {

using test::error_of;
using test::raw;
using test::Scratch;
using testing::HasSubstr;

std::string file_of(const std::string& header, const std::string& data) {
  return raw(uint64_t{header.size()}) + header + data;
}
std::string floats(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += raw(static_cast<float>(i) + 0.5f);
  return out;
}

struct Malformed {
  std::string name;
  std::string content;
  std::string message;  // part of what the error says
};

std::string one(const std::string& description) {
  return file_of("{\"a\":" + description + "}", floats(4));
}

std::vector<Malformed> corpus() {
  const std::string a = R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})";
  std::vector<Malformed> out{
      {"empty", "", "too few"},
      {"7_bytes", std::string(7, 'x'), "too few"},
      {"length_0", raw(uint64_t{0}), "does not begin with '{'"},
      {"9_bytes", raw(uint64_t{1}) + "x", "does not begin with '{'"},
      {"length_max", raw(~uint64_t{0}) + "{}", "header of"},
      {"length_half", raw(uint64_t{1} << 63) + "{}", "header of"},
      {"length_over_limit", raw(uint64_t{100'000'001}) + "{}", "header of"},
      {"length_one_too_many", raw(uint64_t{3}) + "{}", "truncated"},
      {"length_beyond", raw(uint64_t{1000}) + "{}", "truncated"},
      {"no_brace", file_of("[]", ""), "does not begin with '{'"},
      {"leading_blank", file_of(" {}", ""), "does not begin with '{'"},
      {"not_json", file_of("{hello}", ""), "malformed JSON"},
      {"unterminated", file_of(R"({"a":)", ""), "malformed JSON"},
      {"two_values", file_of("{}{}", ""), "malformed JSON"},
      {"comment", file_of("{/* */}", ""), "malformed JSON"},
      {"bad_utf8", file_of("{\"\xff\":1}", ""), "malformed JSON"},
      {"nul_after", file_of(std::string("{}\0garbage", 10), ""), "NUL"},
      {"nul_in_name",
       file_of(R"({"a\u0000b":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", floats(1)),
       "NUL"},
      {"duplicate_tensor", file_of("{" + a + "," + a + "}", floats(4)), "appears twice"},
      {"duplicate_metadata", file_of(R"({"__metadata__":{},"__metadata__":{}})", ""),
       "appears twice"},
      {"duplicate_metadata_key", file_of(R"({"__metadata__":{"x":"1","x":"2"}})", ""),
       "appears twice"},
      {"metadata_number", file_of(R"({"__metadata__":{"x":1}})", ""), "__metadata__"},
      {"metadata_array", file_of(R"({"__metadata__":[]})", ""), "an array"},
      {"tensor_is_text", one(R"("F32")"), "description of 'a'"},
      {"tensor_is_null", one("null"), "null"},
      {"no_dtype", one(R"({"shape":[4],"data_offsets":[0,16]})"), "has no dtype"},
      {"no_shape", one(R"({"dtype":"F32","data_offsets":[0,16]})"), "has no shape"},
      {"no_offsets", one(R"({"dtype":"F32","shape":[4]})"), "has no data_offsets"},
      {"unknown_field", one(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16],"x":1})"),
       "unknown field"},
      {"field_twice", one(R"({"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]})"),
       "appears twice"},
      {"unknown_dtype", one(R"({"dtype":"F31","shape":[4],"data_offsets":[0,16]})"),
       "unknown dtype 'F31'"},
      {"dtype_number", one(R"({"dtype":32,"shape":[4],"data_offsets":[0,16]})"), "the number 32"},
      {"f4_half_byte", one(R"({"dtype":"F4","shape":[33],"data_offsets":[0,16]})"), "whole bytes"},
      {"shape_negative", one(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})"), "-4"},
      {"shape_float", one(R"({"dtype":"F32","shape":[4.0],"data_offsets":[0,16]})"), "4.0"},
      {"shape_huge", one(R"({"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,16]})"),
       "18446744073709551616"},
      {"shape_2_63", one(R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,16]})"),
       "dimension of"},
      {"shape_overflow",
       one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]})"),
       "overflows"},
      {"shape_overflow_to_0",
       one(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})"), "overflows"},
      {"shape_nested", one(R"({"dtype":"F32","shape":[[4]],"data_offsets":[0,16]})"), "an array"},
      {"shape_text", one(R"({"dtype":"F32","shape":"4","data_offsets":[0,16]})"), "the text '4'"},
      {"rank_9", one(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16]})"),
       "more than 8"},
      {"offsets_one", one(R"({"dtype":"F32","shape":[4],"data_offsets":[0]})"), "not 2"},
      {"offsets_three", one(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16,16]})"),
       "more than 2"},
      {"offsets_swapped", one(R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})"), "backwards"},
      {"offsets_negative", one(R"({"dtype":"F32","shape":[4],"data_offsets":[-16,0]})"), "-16"},
      {"size_mismatch", one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,16]})"), "need 12"},
      {"past_end", one(R"({"dtype":"F32","shape":[5],"data_offsets":[0,20]})"), "truncated"},
      {"not_at_0", one(R"({"dtype":"F32","shape":[3],"data_offsets":[4,16]})"), "hole"},
      {"tail", one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})"), "4 bytes follow"},
      {"overlap",
       file_of(
           R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
           floats(4)),
       "overlap"},
      {"gap",
       file_of(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
           floats(4)),
       "hole"},
      {"data_without_tensors", file_of("{}", "x"), "1 bytes follow"},
      {"long_name", file_of("{\"" + std::string(65536, 'n') + "\":1}", ""), "..."},
      {"deep", file_of("{\"a\":" + std::string(100000, '['), ""), "an array"},
  };
  return out;
}

TEST(SafetensorsFile, refuses_malformed_files) {
  const Scratch scratch;
  for (const auto& bad : corpus()) {
    const auto path = scratch.write(bad.name + ".safetensors", bad.content);
    const std::string message = error_of(ExitCode::bad_data, [&] { SafetensorsFile file(path); });
    EXPECT_THAT(message, HasSubstr(bad.message)) << bad.name;
    EXPECT_THAT(message, HasSubstr(path.string())) << bad.name;
    EXPECT_LT(message.size(), 600u) << bad.name;
  }
}

TEST(SafetensorsFile, every_truncation_of_a_good_file_is_refused) {
  const Scratch scratch;
  const std::string good =
      file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", floats(2));
  for (size_t length = 0; length < good.size(); ++length) {
    const auto path = scratch.write("t.safetensors", good.substr(0, length));
    error_of(ExitCode::bad_data, [&] { SafetensorsFile file(path); });
  }
}

TEST(SafetensorsFile, accepts_unusual_but_legal_files) {
  const Scratch scratch;
  EXPECT_TRUE(SafetensorsFile(scratch.write("none", file_of("{}", ""))).entries().empty());
  EXPECT_TRUE(SafetensorsFile(scratch.write("padded", file_of("{}      ", ""))).entries().empty());
  const SafetensorsFile odd(scratch.write(
      "odd",
      file_of(
          R"({"__metadata__":{"format":"pt"},"scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
          R"("none":{"dtype":"BF16","shape":[0,5],"data_offsets":[4,4]},)"
          R"("caf\u00e9 😀":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[4,7]},)"
          R"("packed":{"dtype":"F4","shape":[2],"data_offsets":[7,8]}})",
          floats(2))));
  EXPECT_EQ(odd.entries().size(), 4u);
  EXPECT_EQ(odd.metadata().at("format"), "pt");
  EXPECT_TRUE(odd.entries().contains("caf\u00e9 😀"));
}

TEST(SafetensorsFile, a_missing_file_is_input_missing) {
  error_of(ExitCode::input_missing, [] { SafetensorsFile file("/nonexistent/model.safetensors"); });
  const Scratch scratch;
  EXPECT_THAT(error_of(ExitCode::input_missing, [&] { SafetensorsSource source(scratch.path()); }),
              HasSubstr(scratch.path().string()));
}

// [6, 5] of i + j / 8 in every float type (all exact in bf16), at an odd offset.
class SafetensorsTypes : public testing::TestWithParam<const char*> {};

TEST_P(SafetensorsTypes, a_block_is_converted_and_only_its_bytes_are_read) {
  const std::string name = GetParam();
  const auto torch = name == "F64"   ? at::kDouble
                     : name == "F32" ? at::kFloat
                     : name == "F16" ? at::kHalf
                                     : at::kBFloat16;
  const at::Tensor values =
      at::arange(6).unsqueeze(1).add(at::arange(5).unsqueeze(0).div(8.0)).to(torch).contiguous();
  const size_t bytes = static_cast<size_t>(values.numel()) * values.element_size();
  const std::string data(static_cast<const char*>(values.const_data_ptr()), bytes);
  const Scratch scratch;
  const std::string header =
      R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":")" + name +
      R"(","shape":[6,5],"data_offsets":[1,)" + std::to_string(bytes + 1) + "]}}";
  const SafetensorsSource source(scratch.write("m.safetensors", file_of(header, "x" + data)));
  const base::Block block{2, 3, 1, 2};
  std::vector<float> got(6);
  source.read("w", block, got.data());
  EXPECT_EQ(got, (std::vector<float>{2.125f, 2.25f, 3.125f, 3.25f, 4.125f, 4.25f}));
  EXPECT_EQ(source.bytes_read(), 6 * static_cast<uint64_t>(values.element_size()));
  EXPECT_EQ(source.type_name("w"), name);
  EXPECT_THAT(error_of(ExitCode::bad_data,
                       [&] {
                         source.read("x", {0, 1, 0, 1}, got.data());
                       }),
              HasSubstr("type U8"));
  EXPECT_THAT(error_of(ExitCode::bad_data,
                       [&] {
                         source.read("y", {0, 1, 0, 1}, got.data());
                       }),
              HasSubstr("no tensor 'y'"));
}
INSTANTIATE_TEST_SUITE_P(All, SafetensorsTypes, testing::Values("F64", "F32", "F16", "BF16"));

TEST(SafetensorsSource, notices_a_file_that_changes_under_it) {
  const Scratch scratch;
  const std::string good =
      file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", floats(2));
  const auto path = scratch.write("m.safetensors", good);
  const SafetensorsSource source(path);
  scratch.write("m.safetensors", good.substr(0, 8));
  float out[2];
  EXPECT_THAT(error_of(ExitCode::bad_data,
                       [&] {
                         source.read("a", {0, 2, 0, 1}, out);
                       }),
              HasSubstr("changed"));
}

class SafetensorsIndex : public testing::Test {
 protected:
  SafetensorsIndex() {
    const std::string tensor = R"(:{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    scratch.write("one.safetensors", file_of("{\"a\"" + tensor, floats(2)));
    scratch.write("two.safetensors", file_of("{\"b\"" + tensor, floats(2)));
  }
  std::string refused(const std::string& index, ExitCode code = ExitCode::bad_data) {
    scratch.write("model.safetensors.index.json", index);
    return error_of(code, [&] { SafetensorsSource source(scratch.path()); });
  }
  Scratch scratch;
};

TEST_F(SafetensorsIndex, joins_the_files) {
  scratch.write(
      "model.safetensors.index.json",
      R"({"metadata":{"total_size":16.0,"nested":[{"x":null}]},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const SafetensorsSource source(scratch.path());
  EXPECT_EQ(source.names(), (std::vector<std::string>{"a", "b"}));
  float out[2];
  source.read("b", {0, 2, 0, 1}, out);
  EXPECT_EQ(out[1], 1.5f);
}

// Of weights that are there in both forms transformers reads model.safetensors, whatever the index
// says.
TEST_F(SafetensorsIndex, is_not_read_beside_one_file) {
  scratch.write("model.safetensors",
                file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", floats(1)));
  for (const char* index : {R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})",
                            R"({"weight_map":{"a":"missing.safetensors"}})", "{"}) {
    scratch.write("model.safetensors.index.json", index);
    EXPECT_EQ(SafetensorsSource(scratch.path()).spec("a").shape, std::vector<int64_t>{1});
  }
}

TEST_F(SafetensorsIndex, refuses_what_does_not_fit) {
  EXPECT_THAT(refused(R"({"metadata":{}})"), HasSubstr("no weight_map"));
  EXPECT_THAT(refused(R"([])"), HasSubstr("an array"));
  EXPECT_THAT(refused(R"({"weight_map":[]})"), HasSubstr("an array"));
  EXPECT_THAT(refused(R"({"weight_map":{"a":1}})"), HasSubstr("a number"));
  EXPECT_THAT(refused(R"({"weight_map":{},"weight_map":{}})"), HasSubstr("twice"));
  EXPECT_THAT(refused(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})"),
              HasSubstr("twice"));
  EXPECT_THAT(refused(R"({"weight_map":{"a":"one.safetensors","c":"two.safetensors"}})"),
              HasSubstr("does not list"));
  EXPECT_THAT(refused(R"({"weight_map":{"a":"one.safetensors","c":"one.safetensors"}})"),
              HasSubstr("does not have it"));
  EXPECT_THAT(refused(R"({"weight_map":{"a":"one.safetensors","b":"three.safetensors"}})",
                      ExitCode::input_missing),
              HasSubstr("three.safetensors"));
  for (const char* path : {"../one.safetensors", "/etc/passwd", "..", "", "a\\\\b",
                           "sub/one.safetensors", "a\\u0000b"}) {
    EXPECT_THAT(refused(R"({"weight_map":{"a":")" + std::string(path) + "\"}}"),
                HasSubstr("not a plain file name"))
        << path;
  }
  EXPECT_THAT(refused("{\"x\":" + std::string(100000, '[')), HasSubstr("nested deeper"));
}

TEST_F(SafetensorsIndex, links_out_of_the_folder_are_refused_but_for_the_cache_of_hugging_face) {
  const Scratch elsewhere;
  std::filesystem::copy(scratch / "one.safetensors", elsewhere / "blob");
  std::filesystem::create_symlink(elsewhere / "blob", scratch / "link.safetensors");
  EXPECT_THAT(refused(R"({"weight_map":{"a":"link.safetensors"}})"),
              HasSubstr("outside of the model's folder"));

  const auto repository = elsewhere / "models--x";
  std::filesystem::create_directories(repository / "blobs");
  std::filesystem::create_directories(repository / "snapshots/abc");
  std::filesystem::copy(scratch / "one.safetensors", repository / "blobs/1234");
  std::filesystem::create_symlink("../../blobs/1234", repository / "snapshots/abc/one.safetensors");
  elsewhere.write("models--x/snapshots/abc/model.safetensors.index.json",
                  R"({"weight_map":{"a":"one.safetensors"}})");
  EXPECT_TRUE(SafetensorsSource(repository / "snapshots/abc").contains("a"));
}

std::vector<float> numbers(int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), -3.0f);
  return out;
}

TEST(SafetensorsWriter, ranks_write_their_own_blocks) {
  const Scratch scratch;
  const std::vector<base::TensorSpec> tensors{{"w", {7, 6}}, {"a.norm", {5}}, {"z", {4, 6}}};
  const auto layout = base::ShardLayout::sliced(tensors, 2,
                                                {{base::SliceAxis::columns, {0, 2, 6}},
                                                 {base::SliceAxis::rows, {0, 3, 5}},
                                                 {base::SliceAxis::rows, {0, 4, 4}}});
  for (const uint64_t limit : {uint64_t{1} << 30, uint64_t{120}, uint64_t{1}}) {
    for (const auto type : {StoredType::f32, StoredType::bf16, StoredType::f16}) {
      SafetensorsWriter first(scratch.path(), tensors, type, limit),
          second(scratch.path(), tensors, type, limit);
      first.create();
      for (int rank = 0; rank < 2; ++rank) {
        auto& writer = rank == 0 ? first : second;
        for (size_t t = 0; t < tensors.size(); ++t) {
          const auto whole = numbers(tensors[t].elements());
          const auto block = layout.block(t, rank);
          std::vector<float> part;
          for (int64_t i = 0; i < block.elements(); ++i) {
            const int64_t row = block.row + i / block.columns,
                          column = block.column + i % block.columns;
            part.push_back(whole[static_cast<size_t>(row * tensors[t].columns() + column)]);
          }
          writer.write(tensors[t].name, block, part.data());
        }
        writer.sync();
      }
      first.commit();
      const SafetensorsSource source(scratch.path());
      EXPECT_EQ(source.names().size(), tensors.size());
      for (const auto& tensor : tensors) {
        std::vector<float> got(static_cast<size_t>(tensor.elements()));
        source.read(tensor.name, {0, tensor.rows(), 0, tensor.columns()}, got.data());
        EXPECT_EQ(got, numbers(tensor.elements())) << tensor.name;
        EXPECT_EQ(source.spec(tensor.name).shape, tensor.shape);
        EXPECT_EQ(source.type(tensor.name), type);
      }
    }
    // Files of the earlier, differently cut export are gone.
    size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(scratch.path()))
      files += entry.path().extension() == ".safetensors";
    EXPECT_EQ(files, limit == 1 ? 3u : limit == 120 ? 2u : 1u);
  }
}

// A commit that ends between its renames, here because a folder has the name of the second file:
// index, shapes and names of the older export would fit.
TEST(SafetensorsWriter, an_export_that_ends_half_way_over_an_older_one_is_refused) {
  const Scratch scratch;
  const std::vector<base::TensorSpec> tensors{{"a", {5}}, {"b", {5}}};
  const auto export_of = [&](float value) {
    SafetensorsWriter writer(scratch.path(), tensors, StoredType::f32, 1);
    writer.create();
    const std::vector<float> values(5, value);
    for (const auto& tensor : tensors)
      writer.write(tensor.name, {0, tensor.rows(), 0, tensor.columns()}, values.data());
    writer.sync();
    writer.commit();
  };
  export_of(1);
  EXPECT_TRUE(SafetensorsSource(scratch.path()).contains("b"));
  const auto second = scratch / "model-00002-of-00002.safetensors", aside = scratch / "aside";
  std::filesystem::rename(second, aside);
  std::filesystem::create_directory(second);
  error_of(ExitCode::io_error, [&] { export_of(2); });
  std::filesystem::remove(second);
  std::filesystem::rename(aside, second);
  EXPECT_THAT(error_of(ExitCode::input_missing, [&] { SafetensorsSource{scratch.path()}; }),
              HasSubstr("did not end"));
  export_of(3);
  EXPECT_TRUE(SafetensorsSource(scratch.path()).contains("b"));
}

// A part of rows and columns, as it is stored and only then; a value that is no number keeps its
// bits.
TEST(SafetensorsSource, copies_what_is_stored) {
  const Scratch scratch;
  const std::vector<uint16_t> bits{1, 2, 3, 4, 0x7F81, 6, 7, 8, 9, 10, 11, 12};  // [3, 4]
  const SafetensorsSource source(scratch.write(
      "model.safetensors", file_of(R"({"w":{"dtype":"BF16","shape":[3,4],"data_offsets":[0,24]}})",
                                   {reinterpret_cast<const char*>(bits.data()), 24})));
  std::vector<uint16_t> got(6);
  const base::Block part{1, 2, 0, 3};
  EXPECT_TRUE(source.copy("w", part, StoredType::bf16, reinterpret_cast<std::byte*>(got.data())));
  EXPECT_EQ(got, (std::vector<uint16_t>{0x7F81, 6, 7, 9, 10, 11}));
  EXPECT_EQ(source.bytes_read(), 12u);
  EXPECT_FALSE(source.copy("w", part, StoredType::f32, nullptr));
}

}  // namespace
}  // namespace trireme::model
