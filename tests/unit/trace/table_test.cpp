#include "trireme/trace/table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <random>
#include <sstream>

#include "trireme/base/error.hpp"

namespace trireme::trace {
namespace {

using testing::HasSubstr;
using testing::Not;

RegionTotal region(std::string path, double seconds, Category category = Category::work,
                   int64_t bytes = 0) {
  RegionTotal r;
  r.path = std::move(path);
  r.category = category;
  r.calls = 2;
  r.seconds = seconds;
  r.longest = seconds / 2;
  r.bytes = bytes;
  return r;
}

Summary rank(int number, std::string role, double train, double all = 10) {
  Summary s;
  s.rank = number;
  s.role = std::move(role);
  s.seconds = all;
  s.host_peak = 1000 + number;
  s.regions = {region("iteration", all), region("iteration/train", train),
               region("iteration/train/gather", train / 4, Category::communication, 4096),
               region("iteration/tiny", 0.001)};
  s.communication = train / 4;
  return s;
}

TEST(Table, MinAvgMaxPerRole) {
  const std::vector<Summary> ranks{rank(2, "generator", 1), rank(0, "trainer", 4),
                                   rank(1, "trainer", 6)};
  const Table table = make_table(ranks);
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table[0].role, "trainer");
  EXPECT_EQ(table[0].ranks, 2);
  EXPECT_EQ(table[0].host_peak, 1001);
  const TableRow& train = table[0].rows[1];
  EXPECT_EQ(train.path, "iteration/train");
  EXPECT_EQ(train.depth, 1);
  EXPECT_DOUBLE_EQ(train.seconds.min, 4);
  EXPECT_DOUBLE_EQ(train.seconds.avg, 5);
  EXPECT_DOUBLE_EQ(train.seconds.max, 6);
  EXPECT_DOUBLE_EQ(train.percent, 50);
  EXPECT_DOUBLE_EQ(table[0].communication.avg, 1.25);
  EXPECT_DOUBLE_EQ(table[0].rows[2].bytes, 4096);
}

TEST(Table, RankWithoutTheRegionCountsAsZero) {
  std::vector<Summary> ranks{rank(0, "trainer", 4), rank(1, "trainer", 4)};
  ranks[1].regions.push_back(region("checkpoint", 2));
  ranks[1].regions.insert(ranks[1].regions.begin() + 1, region("iteration/first", 1));
  const Table table = make_table(ranks);
  const auto row = [&](std::string_view path) {
    for (const TableRow& r : table[0].rows) {
      if (r.path == path) return r;
    }
    throw std::runtime_error("no row");
  };
  EXPECT_DOUBLE_EQ(row("checkpoint").seconds.min, 0);
  EXPECT_DOUBLE_EQ(row("checkpoint").seconds.avg, 1);
  EXPECT_EQ(row("iteration/first").depth, 1);
  // depth first: every row stands below its parent
  for (size_t i = 0; i < table[0].rows.size(); ++i) {
    const auto& path = table[0].rows[i].path;
    if (const size_t slash = path.rfind('/'); slash != std::string::npos) {
      EXPECT_TRUE(table[0].rows[i - 1].path.starts_with(path.substr(0, slash))) << path;
    }
  }
}

// Random trees on nine ranks of three roles, against sums over a map.
TEST(Table, IsTheLoopOverRanksWhateverTheyRecorded) {
  std::mt19937 random(11);
  const auto number = [&random](int limit) {
    return static_cast<double>(random() % static_cast<unsigned>(limit)) / 4;
  };
  std::vector<Summary> ranks;
  std::map<std::pair<std::string, std::string>, std::vector<double>> wanted;  // by role and path
  std::map<std::string, int> ranks_of;
  for (int r = 0; r < 9; ++r) {
    Summary s;
    s.rank = r;
    s.role = std::array{"trainer", "generator", "reward, trainer"}[random() % 3];
    s.seconds = 100 + number(40);
    ++ranks_of[s.role];
    for (const char* outer : {"x", "y", "z"}) {
      if (random() % 3 == 0) continue;
      for (const std::string& path : {std::string(outer), base::text(outer, "/in"),
                                      base::text(outer, "/in/most"), base::text(outer, "/out")}) {
        s.regions.push_back(region(path, number(100)));
        wanted[{s.role, path}].push_back(s.regions.back().seconds);
      }
    }
    ranks.push_back(s);
  }
  std::shuffle(ranks.begin(), ranks.end(), random);
  size_t rows = 0;
  for (const RoleTable& role : make_table(ranks)) {
    EXPECT_EQ(role.ranks, ranks_of[role.role]);
    for (const TableRow& row : role.rows) {
      auto seconds = wanted.at({role.role, row.path});
      seconds.resize(static_cast<size_t>(role.ranks), 0.0);
      const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
      EXPECT_EQ(row.seconds.min, *std::min_element(seconds.begin(), seconds.end())) << row.path;
      EXPECT_EQ(row.seconds.max, *std::max_element(seconds.begin(), seconds.end())) << row.path;
      EXPECT_NEAR(row.seconds.avg * role.ranks, sum, 1e-9) << row.path;
      EXPECT_NEAR(row.percent, 100 * sum / (role.ranks * role.seconds.avg), 1e-9) << row.path;
      EXPECT_EQ(row.depth, std::count(row.path.begin(), row.path.end(), '/'));
      ++rows;
    }
  }
  EXPECT_EQ(rows, wanted.size());
}

TEST(Table, TextShowsRowsAndFoldsSmallOnes) {
  std::vector<Summary> ranks{rank(0, "trainer", 4)};
  const std::string text = to_text(make_table(ranks), {});
  EXPECT_THAT(text,
              HasSubstr("trainer: 1 rank, 10.0 s, exposed communication 10.0 %, waiting 0.0 %"));
  EXPECT_THAT(text, HasSubstr("    train "));
  EXPECT_THAT(text, HasSubstr("4.0 KiB"));
  EXPECT_THAT(text, Not(HasSubstr("tiny")));
  ranks[0].regions.push_back(region("iteration/small1", 0.04));
  ranks[0].regions.push_back(region("iteration/small2", 0.04));
  EXPECT_THAT(to_text(make_table(ranks), {}), HasSubstr("    other "));
  EXPECT_THAT(to_text(make_table(ranks), {0, 2}), Not(HasSubstr("gather")));
}

TEST(Table, SummaryOnTheWire) {
  Summary summary = rank(3, "generator, reward", 2.5);
  summary.counter_max["kv_pages"] = 17.5;
  summary.dropped = 9;
  const std::string bytes = summary.to_bytes();
  EXPECT_EQ(Summary::from_bytes(bytes), summary);
  for (size_t cut = 0; cut < bytes.size(); ++cut)
    EXPECT_THROW(Summary::from_bytes(bytes.substr(0, cut)), UserError) << cut;
  EXPECT_THROW(Summary::from_bytes(bytes + "x"), UserError);
  for (size_t at = 0; at < bytes.size();
       ++at) {  // any byte may be wrong: an error or another summary, never a crash
    std::string broken = bytes;
    broken[at] = static_cast<char>(broken[at] ^ 0xFF);
    try {
      Summary::from_bytes(broken);
    } catch (const UserError&) {}
  }
}

TEST(Table, GatherFunctionDecidesWhoGetsIt) {
  const Gather root = [](const std::string& mine) { return std::vector<std::string>{mine, mine}; };
  const Gather other = [](const std::string&) { return std::vector<std::string>{}; };
  EXPECT_EQ(gather_table(0, "all", root)[0].ranks, 2);
  EXPECT_TRUE(gather_table(1, "all", other).empty());
}

// With nothing to fold there is no line for it, and what is folded adds up.
TEST(Table, OtherIsWhatIsNotShown) {
  std::vector<Summary> ranks{rank(0, "trainer", 4)};
  EXPECT_THAT(to_text(make_table(ranks), {.fold_below_percent = 0, .max_depth = 4}),
              Not(HasSubstr("other")));
  EXPECT_THAT(to_text(make_table(ranks), {.fold_below_percent = 0, .max_depth = 4}),
              HasSubstr("    tiny "));
  ranks[0].regions.push_back(region("iteration/small1", 0.03));  // 0.3 % each, 0.61 % with "tiny"
  ranks[0].regions.push_back(region("iteration/small1/below", 0.03));
  ranks[0].regions.push_back(region("iteration/small2", 0.03));
  const std::string text = to_text(make_table(ranks), {});
  const size_t at = text.find("    other ");
  ASSERT_NE(at, std::string::npos) << text;
  std::istringstream line(text.substr(at));
  std::string name;
  int64_t calls = 0;
  double least = 0, mean = 0, most = 0, percent = 0;
  line >> name >> calls >> least >> mean >> most >> percent;
  EXPECT_EQ(calls, 6) << "two of each; what lies below one of them is in it already";
  EXPECT_NEAR(mean, 0.061, 1e-4);
  EXPECT_NEAR(percent, 0.6, 1e-9);
}

TEST(Table, RunsWithoutTimeOrRegionsHaveNoShares) {
  Summary none;
  none.role = "trainer";
  const Table table = make_table(std::vector<Summary>{none, none});
  ASSERT_EQ(table.size(), 1u);
  EXPECT_EQ(table[0].ranks, 2);
  EXPECT_TRUE(table[0].rows.empty());
  EXPECT_THAT(to_text(table), HasSubstr("trainer: 2 ranks, 0.0 us, exposed communication 0.0 %"));
  EXPECT_TRUE(make_table({}).empty());
  EXPECT_EQ(to_text({}), "");
}

// The largest memory of any rank, the calls of the one that has most, the bytes of the average one.
TEST(Table, EachColumnHasItsOwnReduction) {
  std::vector<Summary> ranks{rank(0, "all", 4), rank(1, "all", 4)};
  ranks[0].regions[1].resident = 70;
  ranks[1].regions[1].resident = 30;
  ranks[1].regions[1].device = 90;
  ranks[1].regions[1].calls = 9;
  ranks[1].regions[1].bytes = 1000;
  ranks[1].regions[1].wait = 3;
  ranks[1].dropped = 5;
  ranks[0].dropped = 2;
  const RoleTable table = make_table(ranks)[0];
  const TableRow& row = table.rows[1];
  EXPECT_EQ(row.resident, 70);
  EXPECT_EQ(row.device, 90);
  EXPECT_EQ(row.calls, 9);
  EXPECT_EQ(row.bytes, 500);
  EXPECT_EQ(row.wait, 1.5);
  EXPECT_EQ(table.dropped, 7);
  EXPECT_EQ(table.iterations.count, 2);
}

}  // namespace
}  // namespace trireme::trace
