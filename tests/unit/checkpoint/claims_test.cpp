// Claims of the run lock as files: odd names, damaged texts, a full disk. Each rank has a folder of
// its own.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>

#include <nlohmann/json.hpp>

#include "checkpoint/lock_claims.hpp"
#include "checkpoint/lock_liveness.hpp"
#include "checkpoint/manifest.hpp"
#include "fixture.hpp"

namespace {
std::atomic<bool> answers_get_lost{false};
}

// In place of the C library's: a file server whose answer was lost, and who says of the second
// question that the name is there.
extern "C" int link(const char* from, const char* to) noexcept {
  const int made = ::linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
  if (made != 0 || !answers_get_lost) return made;
  errno = EEXIST;
  return -1;
}

namespace trireme::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Claims : public testing::Test {
 protected:
  std::filesystem::path file(const std::string& name) const { return folder.path() / name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
  }
  LockHolder holder(int64_t fence) const {
    LockHolder out = this_process();
    out.fence = fence;
    return out;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      out.push_back(entry.path().filename().string());
    std::sort(out.begin(), out.end());
    return out;
  }
  const SharedFolder folder{comm::CommView{}};
};

TEST_F(Claims, AreFilesOfANumberAndNothingElse) {
  for (const char* name : {".run.lock.2", ".run.lock.10", ".run.lock.9", ".run.lock.0",
                           ".run.lock.123456789012345678"})
    write(name, "");
  for (const char* name : {".run.lock.", ".run.lock.-1", ".run.lock.+1", ".run.lock.1a",
                           ".run.lock. 1", ".run.lock.1.5", ".run.lock.new.7.8", "run.lock.3",
                           "x.run.lock.3", ".run.lock.1234567890123456789",
                           ".run.lock.99999999999999999999999", ".run.lock.007", ".run.lock.00"}) {
    write(name, "");
  }
  EXPECT_THAT(claimed_fences(folder.path()), ElementsAre(123456789012345678, 10, 9, 2, 0));
}

TEST_F(Claims, ABackupOfAClaimLocksNobodyOut) {
  write(".run.lock.007", to_json(holder(7)));
  EXPECT_TRUE(try_claim(folder.path(), holder(1)));
  EXPECT_EQ(current_claim(folder.path())->holder.fence, 1);
}

TEST_F(Claims, SayWhatTheirHolderSaid) {
  LockHolder mine;
  mine.job = "slurm 4711 restart 2";
  mine.cluster = "blue";
  mine.host = "n\"1\\";
  mine.pid = int64_t{1} << 40;
  mine.started = 123456789012345;
  mine.namespace_id = "boot pid:[4026531836]";
  mine.since = "2026-11-21T14:03:33Z";
  mine.folder = UINT64_MAX;
  mine.fence = 5;
  mine.released = true;
  ASSERT_TRUE(try_claim(folder.path(), mine));
  std::ofstream(file(".run.lock.5"), std::ios::app) << "00000000000000000042\n";  // the heartbeat
  const auto read = current_claim(folder.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(to_json(read->holder), to_json(mine));
  EXPECT_EQ(read->holder.pid, mine.pid);
  EXPECT_EQ(read->holder.folder, UINT64_MAX);
  EXPECT_EQ(describe(read->holder),
            "job slurm 4711 restart 2 of cluster blue, host n\"1\\, pid 1099511627776, since "
            "2026-11-21T14:03:33Z");
}

TEST_F(Claims, OneNumberIsForOneHolder) {
  EXPECT_FALSE(current_claim(folder.path()));
  EXPECT_TRUE(try_claim(folder.path(), holder(4)));
  LockHolder late = holder(4);
  late.host = "other";
  EXPECT_FALSE(try_claim(folder.path(), late));
  EXPECT_NE(current_claim(folder.path())->holder.host, "other");
  EXPECT_FALSE(try_claim(folder.path(), holder(3)))
      << "a number that was freed, below the holder's";
  EXPECT_THAT(claimed_fences(folder.path()), ElementsAre(4)) << "and it is free again";
  EXPECT_TRUE(try_claim(folder.path(), holder(5)));
  remove_claims_below(folder.path(), 5);
  EXPECT_THAT(names(), ElementsAre(".run.lock.5")) << "no temporary file either";
}

TEST_F(Claims, ALinkWhoseAnswerWasLostCounts) {
  answers_get_lost = true;
  EXPECT_TRUE(try_claim(folder.path(), holder(4)));
  EXPECT_FALSE(try_claim(folder.path(), holder(4))) << "that one is another's";
  answers_get_lost = false;
  EXPECT_THAT(names(), ElementsAre(".run.lock.4"));
}

TEST_F(Claims, AreReplacedAsAWhole) {
  ASSERT_TRUE(try_claim(folder.path(), holder(2)));
  LockHolder released = holder(2);
  released.released = true;
  rewrite_claim(folder.path(), released);
  EXPECT_TRUE(current_claim(folder.path())->holder.released);
  EXPECT_THAT(names(), ElementsAre(".run.lock.2"));
}

TEST_F(Claims, OneThatVanishesIsNone) {
  std::filesystem::create_symlink("gone", file(".run.lock.9"));
  write(".run.lock.3", to_json(holder(3)));
  EXPECT_EQ(current_claim(folder.path())->holder.fence, 3);
}

TEST_F(Claims, EveryFieldIsNeededAndOfItsType) {
  const auto whole = nlohmann::ordered_json::parse(to_json(holder(3)));
  const auto code = [&](const nlohmann::ordered_json& json, std::string* message) {
    write(".run.lock.3", json.dump());
    return code_of([&] { current_claim(folder.path()); }, message);
  };
  std::string message;
  EXPECT_EQ(code(whole, &message), ExitCode::done);
  for (const auto& [key, value] : whole.items()) {
    auto without = whole;
    without.erase(key);
    EXPECT_EQ(code(without, &message),
              key == "folder" || key == "cluster" ? ExitCode::done : ExitCode::locked)
        << key;  // older versions did not write it
    for (const auto& wrong : {nlohmann::ordered_json::array(), nlohmann::ordered_json(1.5555e66)}) {
      auto other = whole;
      other[key] = wrong;
      message.clear();
      EXPECT_EQ(code(other, &message), ExitCode::locked) << key;
      EXPECT_THAT(message, HasSubstr(file(".run.lock.3").string() + " is not a run lock")) << key;
    }
  }
}

TEST_F(Claims, CutShortAtAnyByteTheyAreRefused) {
  const std::string text = to_json(holder(3));
  for (size_t size = 0; size < text.size(); ++size) {
    write(".run.lock.3", text.substr(0, size));
    EXPECT_EQ(code_of([&] { current_claim(folder.path()); }), ExitCode::locked) << size;
  }
}

// Its number is that of its name: a run that counted from the text would try to get past the name
// for ever.
TEST_F(Claims, ACopyUnderAnotherNumberIsRefused) {
  write(".run.lock.9", to_json(holder(3)));
  std::string message;
  EXPECT_EQ(code_of([&] { current_claim(folder.path()); }, &message), ExitCode::locked);
  EXPECT_THAT(message, HasSubstr(".run.lock.9 is not a run lock (it speaks of fence 3)"));
  EXPECT_EQ(code_of([&] { RunLock(comm::CommView{}, folder.path()); }), ExitCode::locked);
}

// Behind it there is no name that would be seen as a claim: a run that tried would try for ever.
TEST_F(Claims, TheGreatestNumberIsRefused) {
  LockHolder before = holder(largest_fence - 1);
  before.released = true;
  write(claim_path(folder.path(), before.fence).filename(), to_json(before));
  {
    const RunLock last(comm::CommView{}, folder.path());
    EXPECT_EQ(last.fence(), largest_fence);
  }
  std::string message;
  EXPECT_EQ(code_of([&] { RunLock(comm::CommView{}, folder.path()); }, &message), ExitCode::locked);
  EXPECT_THAT(message, HasSubstr(".run.lock.999999999999999999 has the fence"));
}

TEST_F(Claims, ACheckpointOfAFenceThatNobodyCountedToIsRefused) {
  for (const int64_t fence : {largest_fence, INT64_MAX}) {
    FullManifest manifest;
    manifest.format = format_version;
    manifest.step = 3;
    manifest.fence = fence;
    std::filesystem::create_directories(file("ckpt/step-000003"));
    for (const char* name : {"data.h5", "index.bin"})
      write(std::string("ckpt/step-000003/") + name, "");
    write("ckpt/step-000003/manifest.json", to_json(manifest));
    std::string message;
    EXPECT_EQ(
        code_of([&] { RunLock(comm::CommView{}, file("run"), {.checkpoints = file("ckpt")}); },
                &message),
        ExitCode::bad_data);
    EXPECT_THAT(message, HasSubstr("step-000003 has the fence"));
  }
}

TEST_F(Claims, AFullDiskLeavesNoFile) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit none = before;
  none.rlim_cur = 0;
  setrlimit(RLIMIT_FSIZE, &none);
  const ExitCode code = code_of([&] { try_claim(folder.path(), holder(1)); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(code, ExitCode::io_error);
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(Claims, AProcessIsItsNumberAndItsStart) {
  LockHolder me = this_process();
  EXPECT_EQ(ask_process_table(me), Liveness::alive);
  me.started += 1;
  EXPECT_EQ(ask_process_table(me), Liveness::gone) << "the number is another process's now";
  me = this_process();
  me.pid = int64_t{1} << 40;
  EXPECT_EQ(ask_process_table(me), Liveness::gone);
  me.namespace_id += "x";
  EXPECT_EQ(ask_process_table(me), Liveness::unknown) << "of another machine";
}

}  // namespace
}  // namespace trireme::checkpoint
