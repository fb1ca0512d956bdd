// A disk that is really full: a small tmpfs.
#include <fcntl.h>
#include <sys/mount.h>

#include "fixture.hpp"

namespace trireme::checkpoint {
namespace {

using test::world;

// Mounted by rank 0; `mounted()` is the same on all ranks.
class SmallDisk {
 public:
  SmallDisk(const std::filesystem::path& at, const char* size) : at_(at) {
    int ok = 0;
    if (world().rank() == 0)
      ok = ::mount("tmpfs", at.c_str(), "tmpfs", 0, (std::string("size=") + size).c_str()) == 0 ? 1
                                                                                                : 0;
    mounted_ = world().broadcast_value(ok, 0) == 1;
  }
  ~SmallDisk() {
    world().barrier();
    if (mounted_ && world().rank() == 0) ::umount2(at_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }

 private:
  std::filesystem::path at_;
  bool mounted_ = false;
};

TEST(FullDisk, ThePreflightNamesPathNeededAndFree) {
  const SharedFolder folder;
  const SmallDisk disk(folder.path(), "4m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs root";
  std::string message;
  EXPECT_EQ(code_of([&] { save_test(world(), folder.path() / "ckpt", 1); }, &message),
            ExitCode::io_error);
  EXPECT_THAT(message, testing::AllOf(testing::HasSubstr(folder.path().string()),
                                      testing::HasSubstr("needed"), testing::HasSubstr("free")));
}

// Something else takes the space between preflight and write.
TEST(FullDisk, RunningOutInTheMiddleKeepsTheOldCheckpoint) {
  const SharedFolder folder;
  const SmallDisk disk(folder.path(), "14m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs root";
  const std::vector<char> payload(3 << 20, 'x');
  auto save_bytes = [&](int64_t step, bool eat) {
    const base::Block block =
        base::ShardLayout::by_rows({{"/x", {3 << 20}}}, world().size()).block(0, world().rank());
    SaveOptions options;
    options.beat = [&, eat](const char* where) {
      if (!eat || world().rank() != 0 || std::string(where) != "checkpoint: layout") return;
      const int fd =
          ::open((folder.path() / "eaten").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
      while (::write(fd, payload.data(), 1 << 16) > 0) {}
      ::close(fd);
    };
    save(world(), folder.path() / "ckpt", step,
         {{{"/x", {3 << 20}, comm::DType::u8, block, payload.data()}}, "{}"}, options);
  };
  save_bytes(1, false);
  std::string message;
  EXPECT_EQ(code_of([&] { save_bytes(2, true); }, &message), ExitCode::io_error);
  EXPECT_THAT(message, testing::HasSubstr("No space left"));
  EXPECT_EQ(list_steps(folder.path() / "ckpt"), std::vector<int64_t>{1});
  EXPECT_EQ(load_newest(world(), folder.path() / "ckpt", [](Reader& reader) { reader.verify(); }),
            1);
}

}  // namespace
}  // namespace trireme::checkpoint
