// Every case of cases.json is one test, whatever the folder; see cases.hpp for who checks it.
#include "torch/torch.hpp"

#include "parity/registry.hpp"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "parity/cases.hpp"
#include "parity/site.hpp"
#include "support/world.hpp"

namespace trireme::test {
namespace {

// The worst comparison of one output of one formula.
struct Worst {
  int comparisons = 0;
  Comparison result;
  std::string name;
};

struct Record {
  std::map<std::pair<std::string, std::string>, Worst> worst;  // by formula and output
  std::vector<std::string> ran;                                // names of the cases, in order
  std::set<std::string, std::less<>> compared;                 // outputs of the case that runs
};

Record& record() {
  static Record instance;
  return instance;
}

// "r0.m1.grad" counts as "grad", "param/model.norm.weight" as "param".
std::string output_kind(std::string_view field) {
  if (const size_t slash = field.find('/'); slash != std::string_view::npos)
    return std::string(field.substr(0, slash));
  const size_t dot = field.rfind('.');
  return std::string(dot == std::string_view::npos ? field : field.substr(dot + 1));
}

// What table.py reads: the folder, then a line per case that ran and per formula and output.
void write(const std::string& path) {
  std::ofstream out(path);
  out << "folder\t" << Golden::folder().string() << "\n";
  for (const std::string& name : record().ran) out << "case\t" << name << "\n";
  for (const auto& [key, worst] : record().worst) {
    out << "worst\t" << key.first << "\t" << key.second << "\t" << worst.comparisons << "\t"
        << worst.result.error << "\t" << worst.result.share << "\t" << worst.name << "\n";
  }
}

class Reporter : public testing::Environment {
 public:
  void TearDown() override {
    if (world().rank() != 0) return;
    std::printf("%-46s %6s %12s %10s  %s\n", "formula: output", "times", "worst error", "tolerance",
                "case");
    for (const auto& [key, worst] : record().worst) {
      std::printf("%-46s %6d %12.2e %8.1f %%  %s\n", (key.first + ": " + key.second).c_str(),
                  worst.comparisons, worst.result.error, 100 * worst.result.share,
                  worst.name.c_str());
    }
    if (const char* folder = std::getenv("TRIREME_PARITY_REPORT")) {
      write(std::string(folder) + "/np" + std::to_string(world().size()) + ".tsv");
    }
  }
};
const auto* const reporter = testing::AddGlobalTestEnvironment(new Reporter);

// On a device those of families that have a path there.
std::vector<const GoldenCase*> all_cases() {
  std::vector<const GoldenCase*> out;
  for (const GoldenCase& c : Golden::instance().all()) {
    const Family* family = family_of(c);
    if (!site().device || !family || family->paths == Family::Paths::both) out.push_back(&c);
  }
  return out;
}

std::string test_name(const testing::TestParamInfo<const GoldenCase*>& info) {
  std::string name = info.param->name;
  for (char& letter : name) {
    if (!std::isalnum(static_cast<unsigned char>(letter))) letter = '_';
  }
  return name;
}

class Parity : public AtSite, public testing::WithParamInterface<const GoldenCase*> {};

TEST_P(Parity, Case) {
  const GoldenCase& c = *GetParam();
  const Family* family = family_of(c);
  ASSERT_NE(family, nullptr) << "there is no check for cases like " << c.name
                             << ": add one to tests/parity/cases.cpp";
  record().compared.clear();
  record().ran.push_back(c.name);
  family->check(c);
  for (const auto& [field, key] : c.outputs) {
    EXPECT_TRUE(record().compared.contains(field))
        << c.name << ": the check does not look at the output " << field;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Parity, testing::ValuesIn(all_cases()), test_name);

TEST(ParityFolder, CaseNamesAreUnique) {
  std::set<std::string> names;
  for (const GoldenCase& c : Golden::instance().all())
    EXPECT_TRUE(names.insert(c.name).second) << c.name;
  EXPECT_FALSE(names.empty());
}

}  // namespace

void expect_matches(const GoldenCase& c, std::string_view field, const at::Tensor& got) {
  const Comparison result = c.compare(field, got);
  EXPECT_TRUE(result.problem.empty()) << result.problem << " [" << c.name << ", " << field << "]";
  record().compared.emplace(field);
  Worst& worst = record().worst[{c.formula, output_kind(field)}];
  ++worst.comparisons;
  if (worst.name.empty() || result.share > worst.result.share) {
    worst.result = result;
    worst.name = c.name;
  }
}

void expect_matches(const GoldenCase& c, std::string_view field, double got) {
  expect_matches(c, field, at::full({1}, got, at::kDouble));
}

ppo::Segments segments_of(const at::Tensor& rows) {
  std::vector<int64_t> cu_seqlens;
  for (int64_t i = 0; i <= rows.size(0); ++i) cu_seqlens.push_back(i * rows.size(1));
  return ppo::Segments(std::move(cu_seqlens));
}

at::Tensor leaf(const at::Tensor& rows) {
  at::Tensor out = flat(rows).clone();
  out.set_requires_grad(true);
  return out;
}

}  // namespace trireme::test
