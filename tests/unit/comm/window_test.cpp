// Shared windows in the memory map of the process, and what the exchanges count: bytes by hand from
// the geometry.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "support/world.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/shard_exchange.hpp"
#include "trireme/comm/topology.hpp"

namespace trireme::comm {
namespace {

using test::world;
using testing::HasSubstr;

// Maps of this process that show a memory file of that name.
int64_t maps_of(const std::string& name) {
  std::ifstream file("/proc/self/maps");
  int64_t found = 0;
  for (std::string line; std::getline(file, line);)
    found += line.find("memfd:" + name + " ") != std::string::npos;
  return found;
}

int64_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator{});
}

std::byte byte(int rank, int64_t i) { return static_cast<std::byte>(i * 31 + rank * 17 + 1); }

TEST(SharedWindow, PartsAreRoundedToPagesAndLieSideBySide) {
  // 0, 1, 4096, 4097, ... bytes by rank
  const std::vector<int64_t> wanted{0, 1, 4096, 4097};
  const std::vector<int64_t> pages{0, 1, 1, 2};
  const auto me = static_cast<size_t>(world().rank());
  const SharedWindow window(world(), wanted[me], "pages");
  int64_t total = 0;
  for (int rank = 0; rank < world().size(); ++rank) {
    EXPECT_EQ(window.part(rank) - window.part(0), total);
    EXPECT_EQ(window.part_bytes(rank), 4096 * pages[static_cast<size_t>(rank)]);
    total += window.part_bytes(rank);
  }
  EXPECT_EQ(window.total_bytes(), total);
  EXPECT_TRUE(window.valid());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(window.part(0)) % 4096, 0u);
  EXPECT_THAT(window.kind(), HasSubstr("memfd"));
}

TEST(SharedWindow, ZeroAtFirstAndTheSameForAllBehindABarrier) {
  constexpr int64_t bytes = 10000;
  const SharedWindow window(world(), bytes, "bytes");
  const auto* all = window.part(0);
  EXPECT_TRUE(
      std::all_of(all, all + window.total_bytes(), [](std::byte b) { return b == std::byte{0}; }));
  world().barrier();
  for (int64_t i = 0; i < bytes; ++i) window.part(world().rank())[i] = byte(world().rank(), i);
  world().barrier();
  for (int rank = 0; rank < world().size(); ++rank) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < window.part_bytes(rank); ++i)
      wrong += window.part(rank)[i] != (i < bytes ? byte(rank, i) : std::byte{0});
    EXPECT_EQ(wrong, 0) << "part of rank " << rank;
  }
  world().barrier();
}

TEST(SharedWindow, LeavesNeitherMapsNorDescriptorsBehind) {
  const int64_t before = open_descriptors();
  {
    SharedWindow window(world(), 4096, "first");
    EXPECT_EQ(maps_of("first"), 1);
    EXPECT_EQ(open_descriptors(), before + 1) << "by which others of the node find it";
    window = SharedWindow(world(), 4096, "second");
    EXPECT_EQ(maps_of("first"), 0);
    EXPECT_EQ(maps_of("second"), 1);
    SharedWindow nothing;
    EXPECT_FALSE(nothing.valid());
    EXPECT_EQ(nothing.total_bytes(), 0);
    nothing = std::move(window);
    EXPECT_EQ(maps_of("second"), 1);
  }
  EXPECT_EQ(maps_of("second"), 0);
  EXPECT_EQ(open_descriptors(), before);
}

// Whoever is told where an address lies reads it there, in a map of its own, also behind the
// window's end of life elsewhere.
TEST(SharedWindow, IsFoundByItsAddressesAndReadByOthers) {
  const Comm alone = Comm::split(world(), world().rank(), 0, "alone");
  const auto me = static_cast<size_t>(world().rank());
  SharedWindow window(alone.view(), 5000, "of one rank");
  window.part(0)[4999] = byte(world().rank(), 3);
  const WindowPlace place = find_in_windows(window.part(0) + 4999);
  EXPECT_EQ(place.offset, 4999);
  int outside = 0;
  EXPECT_LT(find_in_windows(&outside).offset, 0);
  EXPECT_LT(find_in_windows(nullptr).offset, 0);
  const auto all = world().gather_values(place);
  std::vector<WindowView> views;
  for (const WindowPlace& one : all) views.emplace_back(one.file);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    ASSERT_TRUE(views[rank].valid()) << "rank " << rank;
    EXPECT_EQ(views[rank].base()[all[rank].offset], byte(static_cast<int>(rank), 3))
        << "rank " << rank;
  }
  EXPECT_EQ(views[me].base(), window.part(0)) << "its own map";
  world().barrier();
  window = SharedWindow();
  world().barrier();
  EXPECT_LT(find_in_windows(views[me].base() + 4999).offset, 0);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (rank == me) continue;
    EXPECT_EQ(views[rank].base()[all[rank].offset], byte(static_cast<int>(rank), 3))
        << "rank " << rank;
    EXPECT_FALSE(WindowView(all[rank].file).valid())
        << "it is gone, or its number is another file's";
  }
  EXPECT_FALSE(WindowView(WindowFile{}).valid());
}

TEST(SharedWindow, OutlivesTheRankThatMadeIt) {
  SharedWindow window(world(), 4096, "outlives");
  window.part(world().rank())[5] = std::byte{7};
  world().barrier();
  if (world().rank() == 0) window = SharedWindow();
  world().barrier();
  if (world().rank() > 0) { EXPECT_EQ(window.part(0)[5], std::byte{7}); }
}

TEST(SharedWindow, TheRefusalSaysHowMuchThereIsAndWhatToDo) {
  try {
    const SharedWindow window(world(), int64_t{1} << 50, "too much");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("PiB"), HasSubstr("of memory are available"),
                                    HasSubstr("use a smaller model")));
  }
}

// ---- exchange counters ----

struct Geometry {
  std::vector<SlotGeometry> slots;
  int64_t per_rank = 0;  // elements of a rank's slices in all stages
};

Geometry two_stages() {
  Geometry out;
  size_t id = 0;
  for (const std::vector<int64_t>& stage :
       {std::vector<int64_t>{11, 40}, std::vector<int64_t>{7}}) {
    SlotGeometry slot;
    for (const int64_t per_rank : stage) {
      slot.parameters.push_back({id++, slot.elements, per_rank});
      slot.elements += (per_rank * world().size() + 31) / 32 * 32;
      out.per_rank += per_rank;
    }
    out.slots.push_back(slot);
  }
  return out;
}

class ExchangeCounters : public testing::TestWithParam<std::tuple<ExchangeKind, DType>> {};

// What crosses between ranks in a gather of all stages is what a rank has not: N - 1 slices of each
// parameter. Nothing does in a window.
TEST_P(ExchangeCounters, AreTheBytesOfTheOthersSlices) {
  const auto [kind, type] = GetParam();
  const Geometry geometry = two_stages();
  ExchangeOptions options;
  options.kind = kind;
  options.weight_type = type;
  const auto exchange = make_shard_exchange(world(), geometry.slots, options);
  constexpr int rounds = 3;
  std::vector<float> sink(64);
  for (int round = 0; round < rounds; ++round) {
    exchange->begin_update();
    exchange->end_update();
    for (int stage = 0; stage < 2; ++stage) {
      exchange->gather(stage);
      exchange->gathered(stage);
      exchange->release(stage);
      exchange->gradients(stage);
      exchange->reduce(stage);
      exchange->finish_reduce(
          stage, std::vector<float*>(geometry.slots[static_cast<size_t>(stage)].parameters.size(),
                                     sink.data()));
    }
  }
  const int64_t others = rounds * (world().size() - 1) * geometry.per_rank;
  const auto& counters = exchange->counters();
  EXPECT_EQ(counters.gathers, 2 * rounds);
  EXPECT_EQ(counters.reductions, 2 * rounds);
  EXPECT_EQ(counters.gathered_bytes,
            kind == ExchangeKind::windows ? 0 : others * static_cast<int64_t>(size_of(type)));
  EXPECT_EQ(counters.reduced_bytes, others * 4) << "gradients are fp32 whatever the weights are";
  EXPECT_GE(world().sum(counters.weight_memory),
            geometry.per_rank * world().size() * static_cast<int64_t>(size_of(type)));
  EXPECT_GE(counters.wait_seconds, 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ExchangeCounters,
                         testing::Combine(testing::Values(ExchangeKind::windows,
                                                          ExchangeKind::mpi_ring),
                                          testing::Values(DType::bf16, DType::f32)));

}  // namespace
}  // namespace trireme::comm
