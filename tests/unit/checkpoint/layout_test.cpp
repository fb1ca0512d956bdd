// The file is plain HDF5 that other tools read.
#include <hdf5.h>

#include <array>
#include <bit>
#include <cstdio>

#include "fixture.hpp"

namespace trireme::checkpoint {
namespace {

using test::world;

std::string output_of(const std::string& command) {
  std::string out;
  FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> buffer{};
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe))
    out.append(buffer.data(), got);
  const int status = ::pclose(pipe);
  return status == 0 ? out : "exit status " + std::to_string(status) + ": " + out;
}

TEST(Layout, NamesAndGlobalShapesShowInH5ls) {
  const SharedFolder folder;
  save_test(world(), folder.path(), 1);
  if (world().rank() != 0) return;
  if (std::system("command -v h5ls > /dev/null") != 0)
    GTEST_SKIP() << "no h5ls: install hdf5-tools";
  const std::string file = (folder.path() / "step-000001/data.h5").string();
  const std::string list = output_of("h5ls -r " + file);
  EXPECT_THAT(list, testing::ContainsRegex(
                        "/actor/weight/model.embed_tokens.weight +Dataset \\{1031, 96\\}"));
  EXPECT_THAT(list, testing::ContainsRegex("/critic/weight/conv +Dataset \\{5, 4, 3\\}"));
  EXPECT_THAT(list, testing::ContainsRegex("/state +Dataset \\{SCALAR\\}"));
  EXPECT_THAT(output_of("h5dump -d /state " + file), testing::HasSubstr("{\"iteration\": 1}"));
}

// HDF5 itself reads our values, bf16 converted to float.
TEST(Layout, TheLibraryReadsTheValues) {
  const SharedFolder folder;
  const std::vector<float> f32{1.5f, -2.0f, 3.25f, 1e-30f};
  std::vector<uint16_t> bf16;
  for (const float x : f32) bf16.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
  const bool mine = world().rank() == world().size() - 1;
  const base::Block block = mine ? base::Block{0, 4, 0, 1} : base::Block{};
  save(world(), folder.path(), 1,
       {{{"/a/f32", {4}, comm::DType::f32, block, f32.data()},
         {"/a/bf16", {4}, comm::DType::bf16, block, bf16.data()}},
        "{}"});
  if (world().rank() != 0) return;
  const hid_t file =
      H5Fopen((folder.path() / "step-000001/data.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  for (const char* name : {"/a/f32", "/a/bf16"}) {
    const hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    std::vector<float> got(4);
    ASSERT_GE(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, got.data()), 0);
    for (size_t i = 0; i < 4; ++i) {
      const float expected = std::string(name) == "/a/f32"
                                 ? f32[i]
                                 : std::bit_cast<float>(static_cast<uint32_t>(bf16[i]) << 16);
      EXPECT_EQ(got[i], expected) << name;
    }
    H5Dclose(dataset);
  }
  H5Fclose(file);
}

TEST(Layout, InspectTellsWhatIsInside) {
  const SharedFolder folder;
  save_test(world(), folder.path(), 12);
  if (world().rank() != 0) return;
  const std::string text = inspect(folder.path(), true);
  EXPECT_THAT(text, testing::HasSubstr("step 12"));
  EXPECT_THAT(text, testing::HasSubstr("/actor/weight/model.embed_tokens.weight  1031 x 96  f32"));
  EXPECT_THAT(text, testing::HasSubstr("digests fit"));
  EXPECT_EQ(code_of([&] { inspect(folder.path() / "nowhere", false); }), ExitCode::input_missing);
}

}  // namespace
}  // namespace trireme::checkpoint
