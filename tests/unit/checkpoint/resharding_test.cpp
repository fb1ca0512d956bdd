// Any rank count reads what any other wrote.
#include <cmath>
#include <numeric>

#include "fixture.hpp"

namespace trireme::checkpoint {
namespace {

using test::world;

// The first n ranks of the job.
comm::Comm first_ranks(int n) {
  std::vector<int> ranks(static_cast<size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return comm::Comm::subset(world(), ranks, "first");
}

TEST(Resharding, EveryPairOfRankCounts) {
  for (int writers = 1; writers <= world().size(); ++writers) {
    const SharedFolder folder;
    comm::Comm some = first_ranks(writers);
    if (world().rank() < writers) save_test(some.view(), folder.path(), 7);
    world().barrier();
    for (int readers = 1; readers <= world().size(); ++readers) {
      comm::Comm others = first_ranks(readers);
      if (world().rank() >= readers) continue;
      Reader reader(others.view(), folder.path() / "step-000007");
      EXPECT_EQ(reader.manifest().world_size, writers);
      expect_test_content(reader, world().rank(), readers, 7);
    }
  }
}

TEST(Resharding, ColumnSlicesBothWays) {
  const SharedFolder folder;
  const int rank = world().rank();
  const int ranks = world().size();
  const TestShards columns(rank, ranks, 3, true);
  save(world(), folder.path(), 3, columns.content);
  save_test(world(), folder.path(), 4);
  Reader written_by_columns(world(), folder.path() / "step-000003");
  expect_test_content(written_by_columns, rank, ranks, 3, false);
  expect_test_content(written_by_columns, rank, ranks, 3, true);
  Reader written_by_rows(world(), folder.path() / "step-000004");
  expect_test_content(written_by_rows, rank, ranks, 4, true);
}

TEST(Resharding, EachRankWritesItsShare) {
  const SharedFolder folder;
  const SaveReport report = save_test(world(), folder.path(), 1);
  const double share = static_cast<double>(report.written_by_me) /
                       static_cast<double>(world().sum<int64_t>(report.written_by_me));
  EXPECT_NEAR(share, 1.0 / world().size(), 0.02);
  EXPECT_GT(report.bytes, world().sum<int64_t>(report.written_by_me));
}

TEST(Resharding, ReadersFetchLittleBeyondTheirPart) {
  const SharedFolder folder;
  const int64_t rows = 40000;
  const int64_t columns = 100;
  const base::ShardLayout layout =
      base::ShardLayout::by_rows({{"/big", {rows, columns}}}, world().size());
  const base::Block block = layout.block(0, world().rank());
  const std::vector<float> data(static_cast<size_t>(block.elements()), 1.5f);
  save(world(), folder.path(), 1,
       {{{"/big", {rows, columns}, comm::DType::f32, block, data.data()}}, "{}"});
  // Rows that fit no slab of the writers.
  Reader reader(world(), folder.path() / "step-000001");
  const base::Block middle{rows / 3, rows / 3, 0, columns};
  std::vector<float> into(static_cast<size_t>(middle.elements()));
  const ReadRequest request{"/big", {rows, columns}, comm::DType::f32, middle, into.data()};
  reader.read({&request, 1});
  EXPECT_EQ(into, std::vector<float>(into.size(), 1.5f));
  EXPECT_EQ(reader.counters().wanted, middle.elements() * 4);
  EXPECT_GE(reader.counters().read, reader.counters().wanted);
  EXPECT_LE(reader.counters().read, reader.counters().wanted + 4 * (int64_t{1} << 20));
}

TEST(Resharding, RefusesOtherShapesAndTypesByName) {
  const SharedFolder folder;
  save_test(world(), folder.path(), 1);
  Reader reader(world(), folder.path() / "step-000001");
  std::vector<float> into(2000);
  auto error_of = [&](ReadRequest request) {
    std::string message;
    EXPECT_EQ(code_of([&] { reader.read({&request, 1}); }, &message), ExitCode::bad_data);
    return message;
  };
  const std::string q = "/actor/weight/model.layers.0.self_attn.q_proj.weight";
  EXPECT_THAT(error_of({q, {96, 97}, comm::DType::f32, {0, 1, 0, 97}, into.data()}),
              testing::AllOf(testing::HasSubstr(q), testing::HasSubstr("[96, 96]"),
                             testing::HasSubstr("[96, 97]")));
  EXPECT_THAT(error_of({q, {96, 96}, comm::DType::bf16, {0, 1, 0, 96}, into.data()}),
              testing::AllOf(testing::HasSubstr("f32"), testing::HasSubstr("bf16")));
  EXPECT_THAT(error_of({"/actor/weight/absent", {1}, comm::DType::f32, {}, nullptr}),
              testing::HasSubstr("/actor/weight/absent"));
}

// Only one rank asks for something that is not there: all must learn of it.
TEST(Resharding, OneRanksErrorIsEverybodys) {
  const SharedFolder folder;
  save_test(world(), folder.path(), 1);
  Reader reader(world(), folder.path() / "step-000001");
  std::vector<ReadRequest> requests;
  if (world().rank() == world().size() - 1)
    requests.push_back({"/absent", {1}, comm::DType::f32, {}, nullptr});
  EXPECT_EQ(code_of([&] { reader.read(requests); }), ExitCode::bad_data);
}

TEST(Resharding, RefusesGapsAndOverlaps) {
  const SharedFolder folder;
  const std::vector<float> data(64, 1.0f);
  auto save_block = [&](const base::Block& block) {
    std::string message;
    const Content content{{{"/x", {8, 4}, comm::DType::f32, block, data.data()}}, "{}"};
    EXPECT_EQ(code_of([&] { save(world(), folder.path(), 1, content); }, &message),
              ExitCode::bad_data);
    EXPECT_THAT(message, testing::HasSubstr("/x"));
  };
  const int rank = world().rank();
  save_block(rank == 0 ? base::Block{0, 7, 0, 4} : base::Block{});
  if (world().size() > 1) {
    save_block(rank == 0   ? base::Block{0, 4, 0, 4}
               : rank == 1 ? base::Block{2, 4, 0, 4}
                           : base::Block{});
  }
  EXPECT_TRUE(list_steps(folder.path()).empty());
  EXPECT_TRUE(world().rank() != 0 || std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace trireme::checkpoint
