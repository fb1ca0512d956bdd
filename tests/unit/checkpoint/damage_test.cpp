// Damage is found before use, named, and the checkpoint before is taken.
#include <array>
#include <fstream>

#include "fixture.hpp"

namespace trireme::checkpoint {
namespace {

using test::world;

void flip_bit(const std::filesystem::path& file, uint64_t bit) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(bit / 8));
  char byte = 0;
  stream.read(&byte, 1);
  byte = static_cast<char>(byte ^ (1 << (bit % 8)));
  stream.seekp(static_cast<std::streamoff>(bit / 8));
  stream.write(&byte, 1);
}

// Reads everything; the exit code that a load would have ended with.
ExitCode read_all(const std::filesystem::path& checkpoint, uint64_t salt, std::string* message) {
  return code_of(
      [&] {
        Reader reader(world(), checkpoint);
        expect_test_content(reader, world().rank(), world().size(), salt);
      },
      message);
}

TEST(Damage, EveryFlippedBitIsFoundAndNamed) {
  const SharedFolder folder;
  save_test(world(), folder.path(), 1);
  const std::filesystem::path checkpoint = folder.path() / "step-000001";
  std::string message;
  ASSERT_EQ(read_all(checkpoint, 1, &message), ExitCode::done) << message;
  const int flips = 200 / world().size();
  for (const auto& [name, part] :
       {std::pair{"data.h5", 0.8}, std::pair{"index.bin", 0.1}, std::pair{"manifest.json", 0.1}}) {
    const std::filesystem::path file = checkpoint / name;
    const uint64_t bits = std::filesystem::file_size(file) * 8;
    const int count = static_cast<int>(flips * part);
    for (int i = 0; i < count; ++i) {
      // Half of those of the data lie in the first 2 MiB, where HDF5 has its metadata.
      const uint64_t range = i % 2 == 0 ? bits : std::min<uint64_t>(bits, uint64_t{16} << 20);
      const auto bit = static_cast<uint64_t>(
          static_cast<double>(base::uniform(17, base::Stream::test, static_cast<uint64_t>(i), 0)) *
          static_cast<double>(range));
      world().barrier();
      if (world().rank() == 0) flip_bit(file, bit);
      world().barrier();
      EXPECT_EQ(read_all(checkpoint, 1, &message), ExitCode::bad_data) << name << " bit " << bit;
      EXPECT_THAT(message, testing::HasSubstr(name));
      world().barrier();
      if (world().rank() == 0) flip_bit(file, bit);
    }
  }
  world().barrier();
  EXPECT_EQ(read_all(checkpoint, 1, &message), ExitCode::done) << message;
}

TEST(Damage, ADamagedTensorIsNamed) {
  const SharedFolder folder;
  const std::vector<float> data(100000, 1.0f);
  const bool mine = world().rank() == 0;
  const base::Block block = mine ? base::Block{0, 100000, 0, 1} : base::Block{};
  save(world(), folder.path(), 1,
       {{{"/a/first", {100000}, comm::DType::f32, block, data.data()},
         {"/a/second", {100000}, comm::DType::f32, block, data.data()}},
        "{}"});
  const auto file = folder.path() / "step-000001/data.h5";
  if (mine)
    flip_bit(file, (std::filesystem::file_size(file) - 4000) *
                       8);  // in the last dataset or in /state behind it
  world().barrier();
  std::string message;
  EXPECT_EQ(code_of([&] { Reader(world(), folder.path() / "step-000001").verify(); }, &message),
            ExitCode::bad_data);
  EXPECT_THAT(message, testing::HasSubstr("/a/second"));
}

TEST(Damage, TruncationAtManyPlaces) {
  const SharedFolder folder;
  save_test(world(), folder.path(), 1);
  save_test(world(), folder.path(), 2);
  const std::filesystem::path file = folder.path() / "step-000002/data.h5";
  const auto size = std::filesystem::file_size(file);
  for (int i = 20; i >= 0; --i) {
    if (world().rank() == 0)
      std::filesystem::resize_file(file, size * static_cast<uint64_t>(i) / 21);
    world().barrier();
    std::string message;
    EXPECT_EQ(code_of([&] { Reader(world(), folder.path() / "step-000002"); }, &message),
              ExitCode::bad_data)
        << i;
    EXPECT_THAT(message, testing::HasSubstr("truncated"));
    world().barrier();
  }
}

TEST(Damage, TheCheckpointBeforeIsTaken) {
  const SharedFolder folder;
  for (const int64_t step : {1, 2, 3}) save_test(world(), folder.path(), step);
  world().barrier();
  auto load = [&] {
    return load_newest(world(), folder.path(), [](Reader& reader) {
      expect_test_content(reader, world().rank(), world().size(),
                          static_cast<uint64_t>(reader.manifest().step));
    });
  };
  if (world().rank() == 0) {
    flip_bit(folder.path() / "step-000003/data.h5",
             (std::filesystem::file_size(folder.path() / "step-000003/data.h5") / 2) * 8);
  }
  world().barrier();
  EXPECT_EQ(load(), 2);
  world().barrier();
  if (world().rank() == 0) std::filesystem::remove(folder.path() / "step-000002/manifest.json");
  world().barrier();
  EXPECT_EQ(code_of([&] { EXPECT_EQ(load(), 1); }), ExitCode::done);
  world().barrier();
  if (world().rank() == 0)
    std::filesystem::resize_file(folder.path() / "step-000001/index.bin", 10);
  world().barrier();
  std::string message;
  EXPECT_EQ(code_of([&] { load(); }, &message), ExitCode::bad_data);
  EXPECT_THAT(message, testing::HasSubstr("step-000001"));
}

// Not damage: an older checkpoint must not be taken in place of one that belongs to another run, or
// that cannot be read now.
TEST(Damage, AMismatchIsNotAskedAway) {
  const SharedFolder folder;
  for (const int64_t step : {1, 2}) save_test(world(), folder.path(), step);
  world().barrier();
  float value = 0;
  const auto load = [&](ReadRequest request) {
    int tried = 0;
    std::string message;
    const ExitCode code = code_of(
        [&] {
          load_newest(world(), folder.path(), [&](Reader& reader) {
            ++tried;
            request.into = &value;
            // The last rank alone asks for it: the others must hear that it is no damage.
            if (world().rank() + 1 < world().size()) return reader.read({});
            reader.read(std::array{request});
          });
        },
        &message);
    EXPECT_EQ(code, ExitCode::bad_data);
    EXPECT_EQ(tried, 1);
    EXPECT_THAT(message, testing::HasSubstr("step-000002 does not fit this run"));
    return message;
  };
  EXPECT_THAT(load({"/actor/ema/absent", {3}, comm::DType::f32, {0, 1, 0, 1}}),
              testing::HasSubstr("/actor/ema/absent"));
  EXPECT_THAT(load({"/actor/ema/model.norm.weight", {4}, comm::DType::bf16, {0, 1, 0, 1}}),
              testing::HasSubstr("the shape [3], this run needs [4]"));
  EXPECT_THAT(load({"/actor/ema/model.norm.weight", {3}, comm::DType::f32, {0, 1, 0, 1}}),
              testing::HasSubstr("holds bf16, this run needs f32"));
  world().barrier();
}

TEST(Damage, AnErrorOfTheFileSystemIsThrownOn) {
  const SharedFolder folder;
  for (const int64_t step : {1, 2}) save_test(world(), folder.path(), step);
  world().barrier();
  int tried = 0;
  const auto load = [&] {
    load_newest(world(), folder.path(), [&](Reader&) {
      ++tried;
      if (world().rank() + 1 == world().size()) throw UserError(ExitCode::io_error, "cannot read");
    });
  };
  if (world().size() == 1) {
    EXPECT_EQ(code_of(load), ExitCode::io_error);
    EXPECT_EQ(tried, 1);
  }
  // A folder that cannot be listed is not an empty one.
  if (world().rank() == 0) std::filesystem::create_symlink("loop", folder.path() / "loop");
  world().barrier();
  EXPECT_EQ(code_of([&] { load_newest(world(), folder.path() / "loop", [](Reader&) {}); }),
            ExitCode::io_error);
  world().barrier();
}

}  // namespace
}  // namespace trireme::checkpoint
