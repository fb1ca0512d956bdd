#include "trireme/config/ranks.hpp"

#include "unit/config/expect_error.hpp"

namespace trireme::config {
namespace {

using testing::HasSubstr;
using Ranks = std::vector<int>;

RoleMap resolve(const char* trainer, const char* generator, const char* reward, int world,
                int ranks_per_node = 4) {
  std::vector<int> node_of_rank;
  for (int rank = 0; rank < world; ++rank)
    node_of_rank.push_back(10 - rank / ranks_per_node);  // any numbering
  return resolve_ranks({trainer, generator, reward}, world, node_of_rank);
}

Ranks range(int first, int last) {
  Ranks out;
  for (int i = first; i <= last; ++i) out.push_back(i);
  return out;
}

TEST(Ranks, EmptyIsColocatedOnAll) {
  EXPECT_EQ(resolve("", "", "", 4), (RoleMap{range(0, 3), range(0, 3), range(0, 3)}));
}

TEST(Ranks, CountsThatFitAreDisjoint) {
  EXPECT_EQ(resolve("4", "2", "2", 8), (RoleMap{range(0, 3), range(6, 7), range(4, 5)}));
  EXPECT_EQ(resolve("2", "2", "", 4), (RoleMap{range(0, 1), range(2, 3), range(0, 1)}));
}

TEST(Ranks, CountsThatDoNotFitAreColocated) {
  EXPECT_EQ(resolve("2", "2", "1", 2), (RoleMap{range(0, 1), range(0, 1), {0}}));
}

TEST(Ranks, ListsAreTakenAsTheyAre) {
  EXPECT_EQ(resolve("0-3,6", "4, 5", "6-7", 8), (RoleMap{{0, 1, 2, 3, 6}, {4, 5}, {6, 7}}));
  EXPECT_EQ(resolve("0-1", "1-2", "", 4), (RoleMap{{0, 1}, {1, 2}, {0, 1}}));
}

TEST(Ranks, CountsFillAroundLists) {
  EXPECT_EQ(resolve("2", "1-2", "", 4), (RoleMap{{0, 3}, {1, 2}, {0, 3}}));
}

TEST(Ranks, Nodes) {
  EXPECT_EQ(resolve("nodes:0", "nodes:1-2", "", 12),
            (RoleMap{range(0, 3), range(4, 11), range(0, 3)}));
  // ranks of a node need not be neighbours
  const std::vector<int> round_robin{0, 1, 0, 1};
  EXPECT_EQ(resolve_ranks({"nodes:1", "", ""}, 4, round_robin), (RoleMap{{1, 3}, {0, 2}, {1, 3}}));
}

TEST(Ranks, TheEmptyRoleGetsWhatIsLeft) {
  EXPECT_EQ(resolve("3", "", "", 4), (RoleMap{range(0, 2), {3}, range(0, 2)}));
  EXPECT_EQ(resolve("", "1", "", 4), (RoleMap{range(1, 3), {0}, range(0, 3)}));
  EXPECT_EQ(resolve("4", "", "", 4), (RoleMap{range(0, 3), range(0, 3), range(0, 3)}));
  EXPECT_EQ(resolve("2", "", "1", 4), (RoleMap{range(0, 1), {3}, {2}}));
}

TEST(Ranks, MistakesNameTheKey) {
  const auto message = [](const char* trainer, const char* generator) {
    return error_of(ExitCode::configuration, [&] { resolve(trainer, generator, "", 4); });
  };
  EXPECT_THAT(message("5", ""), HasSubstr("ranks.trainer = \"5\": this job has 4 ranks"));
  EXPECT_THAT(message("", "2-4"), HasSubstr("ranks.generator = \"2-4\": there is no rank 4"));
  EXPECT_THAT(message("nodes:1", ""), HasSubstr("there is no node 1"));
  EXPECT_THAT(message("0-2,1", ""), HasSubstr("names rank 1 twice"));
  EXPECT_THAT(message("3-1", ""), HasSubstr("runs backwards"));
  EXPECT_THAT(message("0", ""), HasSubstr("at least one rank"));
  for (const char* bad :
       {"x", "1,", ",1", "1--2", "nodes:", "-1", "1-", "99999999999", "nodes:a", "0-9999999999"}) {
    EXPECT_THAT(message(bad, ""), HasSubstr("ranks.trainer")) << bad;
  }
}

TEST(Ranks, Text) {
  EXPECT_EQ(rank_ranges(Ranks{0, 1, 2, 3, 6}), "0-3,6");
  EXPECT_EQ(rank_ranges(Ranks{}), "");
  EXPECT_EQ(describe(resolve("2", "2", "", 4)), "trainer 0-1, generator 2-3, reward 0-1");
}

}  // namespace
}  // namespace trireme::config
