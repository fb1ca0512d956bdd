// Pages: who touches them, that memory which cannot be had is an error and no signal, and what
// smaps and move_pages say.
#include "trireme/comm/pages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <vector>

#include "support/world.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/huge_buffer.hpp"
#include "trireme/comm/topology.hpp"

namespace trireme::comm {
namespace {

using test::world;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t MiB = int64_t{1} << 20;

// A file of `file` bytes mapped as `bytes`.
std::byte* map_file(int64_t file, int64_t bytes, int protection) {
  const int fd = memfd_create("pages", MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(fd, file), 0);
  void* map = mmap(nullptr, static_cast<size_t>(bytes), protection, MAP_SHARED, fd, 0);
  close(fd);
  return static_cast<std::byte*>(map);
}

TEST(Pages, ArePresentAfterwardsAndKeepTheirContents) {
  auto* map = map_file(9 * MiB, 9 * MiB, PROT_READ | PROT_WRITE);
  map[5 * MiB] = std::byte{7};
  EXPECT_LT(report_pages(map, 9 * MiB).present, 9 * MiB);
  for (const int threads : {1, 3, 64}) {
    const int error = populate_pages(map, 9 * MiB, threads);
    if (error == EINVAL) GTEST_SKIP() << "a kernel before 5.14";
    EXPECT_EQ(error, 0);
  }
  EXPECT_EQ(map[5 * MiB], std::byte{7});
  const PageReport report = report_pages(map, 9 * MiB);
  EXPECT_EQ(report.present, 9 * MiB);
  EXPECT_LE(report.huge, report.present);
  munmap(map, 9 * MiB);
}

TEST(Pages, MemoryThatCannotBeHadIsAnErrorAndNoSignal) {
  auto* map = map_file(2 * MiB, 8 * MiB,
                       PROT_READ | PROT_WRITE);  // a touch behind the file's end raises SIGBUS
  const int error = populate_pages(map, 8 * MiB, 2);
  if (error == EINVAL) GTEST_SKIP() << "a kernel before 5.14";
  EXPECT_NE(error, 0);
  munmap(map, 8 * MiB);
}

TEST(Pages, NewMemoryIsTouchedByAnyKernel) {
  // Pages that nobody may touch around it: the kernel would join it with a neighbour, whose pages
  // the report would have too.
  constexpr int64_t guard = 64 * 1024;
  auto* map = static_cast<std::byte*>(
      mmap(nullptr, 6 * MiB + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(map, MAP_FAILED);
  std::byte* memory = map + guard;
  ASSERT_EQ(mprotect(memory, 6 * MiB, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(touch_new_pages(memory, 6 * MiB, 3), 0);
  EXPECT_EQ(report_pages(memory, 6 * MiB).present, 6 * MiB);
  munmap(map, 6 * MiB + 2 * guard);
}

TEST(Pages, ReportsOfSmaps) {
  const std::string smaps =
      "7f0000000000-7f0000400000 rw-s 00000000 00:01 12 /memfd:w (deleted)\nSize: 4096 kB\nRss: "
      "4096 kB\nAnonHugePages: 0 kB\n"
      "ShmemPmdMapped: 2048 kB\nFilePmdMapped: 0 kB\nTHPeligible: 1\nVmFlags: rd wr sh\n"
      "7f0000400000-7f0000800000 rw-p 00000000 00:00 0 \nRss: 1000 kB\nAnonHugePages: 512 "
      "kB\nVmFlags: rd wr\n";
  const PageReport first = report_smaps(smaps, 0x7f0000000000, 4 * MiB);
  EXPECT_EQ(first.present, 4 * MiB);
  EXPECT_EQ(first.huge, 2 * MiB);
  const PageReport both = report_smaps(smaps, 0x7f0000300000, 2 * MiB);
  EXPECT_EQ(both.present, 4 * MiB + 1000 * 1024);
  EXPECT_EQ(both.huge, 2 * MiB + 512 * 1024);
  EXPECT_EQ(report_smaps(smaps, 0x7f0000800000, MiB).present, 0);
}

TEST(Pages, TextsForTheLog) {
  PageReport report{8 * MiB, 6 * MiB, {{0, 512}, {1, 512}}};
  EXPECT_EQ(describe(report, 2), "75 % huge pages, NUMA nodes 0: 50 %, 1: 50 %");
  EXPECT_EQ(describe(report, 1), "75 % huge pages, one NUMA node");
  report += PageReport{8 * MiB, 0, {{1, 1024}}};
  EXPECT_EQ(describe(page_report_from_text(to_text(report)), 2),
            "38 % huge pages, NUMA nodes 0: 25 %, 1: 75 %");
  EXPECT_THAT(describe({MiB, 0, {}}, 2),
              AllOf(HasSubstr("KiB pages"), HasSubstr("NUMA nodes unknown")));
}

TEST(Pages, WhatTheAdministratorAllows) {
  std::string name = std::filesystem::temp_directory_path() / "trireme-pages-XXXXXX";
  const std::filesystem::path root = mkdtemp(name.data());
  EXPECT_EQ(huge_page_policy(HugePages::shared, root), "");
  EXPECT_EQ(numa_nodes_of_machine(root), 1);
  std::filesystem::create_directories(root / "sys/kernel/mm/transparent_hugepage");
  std::filesystem::create_directories(root / "sys/devices/system/node");
  std::ofstream(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled")
      << "always within_size advise [never] deny force\n";
  std::ofstream(root / "sys/kernel/mm/transparent_hugepage/enabled") << "always [madvise] never\n";
  std::ofstream(root / "sys/devices/system/node/has_memory") << "0-3\n";
  EXPECT_EQ(huge_page_policy(HugePages::shared, root), "never");
  EXPECT_EQ(huge_page_policy(HugePages::own, root), "madvise");
  EXPECT_EQ(numa_nodes_of_machine(root), 4);
  std::filesystem::remove_all(root);
}

TEST(Pages, OneNumaNodeNeedsNoSpreading) {
  std::byte here{};
  EXPECT_TRUE(interleave_pages(&here, 1, std::vector<int>{0}));
}

TEST(HugeBuffer, IsTouchedAtOnceOrLater) {
  HugeBuffer now(6 * MiB, FirstTouch::now, "a test", "nothing");
  EXPECT_GE(report_pages(now.data(), now.bytes()).present, 6 * MiB);
  EXPECT_EQ(now.data()[6 * MiB - 1], std::byte{0});
  EXPECT_THAT(now.describe(), HasSubstr("pages"));
  now.data()[0] = std::byte{1};
  now.discard();
  EXPECT_EQ(now.data()[0], std::byte{0});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(now.data()) % (2 * MiB), 0u);
  EXPECT_EQ(HugeBuffer(0, FirstTouch::now, "nothing", "").data(), nullptr);
}

TEST(HugeBuffer, TheRefusalSaysWhatItWasFor) {
  try {
    const HugeBuffer buffer(int64_t{1} << 60, FirstTouch::later, "a test", "use less");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::out_of_memory);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("no memory for a test"), HasSubstr("use less")));
  }
}

// Pages are in the page tables of the process that touched them.
TEST(SharedWindowPages, AreTouchedByTheirOwner) {
  const int64_t mine = (4 + 2 * world().rank()) * MiB;
  const SharedWindow window(world(), mine, "owners");
  EXPECT_EQ(report_pages(window.part(0), window.total_bytes()).present, mine);
  EXPECT_EQ(report_pages(window.part(world().rank()), mine).pages_of_node.size(), 1u);
}

TEST(SharedWindowPages, AreDealtToAll) {
  const int64_t part = world().rank() == 0 ? int64_t{world().size()} * 8 * MiB : 0;
  const SharedWindow window(world(), part, "dealt", Placement::dealt);
  EXPECT_EQ(window.total_bytes(), world().size() * 8 * MiB);
  EXPECT_EQ(report_pages(window.part(0), window.total_bytes()).present, 8 * MiB)
      << "not all of them by rank 0";
}

// Whoever touched them: all pages are backed when the constructor returns.
TEST(SharedWindowPages, AreAllThere) {
  for (const Placement placement : {Placement::by_owner, Placement::dealt}) {
    const SharedWindow window(world(), 5 * MiB + 1, "there", placement);
    const auto page = static_cast<int64_t>(sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> present(static_cast<size_t>(window.total_bytes() / page));
    ASSERT_EQ(mincore(window.part(0), static_cast<size_t>(window.total_bytes()), present.data()),
              0);
    EXPECT_TRUE(
        std::all_of(present.begin(), present.end(), [](unsigned char p) { return (p & 1) != 0; }));
    EXPECT_THAT(window.kind(), AllOf(StartsWith("memfd, "), HasSubstr("NUMA node")));
  }
}

TEST(SharedWindowPages, AllRanksSayTheSame) {
  const SharedWindow window(world(), MiB, "kind");
  for (const auto& kind : world().all_gather(window.kind())) EXPECT_EQ(kind, window.kind());
}

}  // namespace
}  // namespace trireme::comm
