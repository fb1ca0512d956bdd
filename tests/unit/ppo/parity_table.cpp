#include "torch/torch.hpp"

#include "unit/ppo/parity_table.hpp"

#include <ATen/TensorOperators.h>

#include <cstdio>
#include <map>

namespace trireme::test {
namespace {

struct Worst {
  int cases = 0;
  double error = 0;  // absolute
  double share = 0;  // of the tolerance
  std::string where;
};

// By formula and output.
std::map<std::string, Worst>& worst_errors() {
  static std::map<std::string, Worst> table;
  return table;
}

class Printer : public testing::Environment {
 public:
  void TearDown() override {
    std::printf("%-46s %6s %12s %10s  %s\n", "formula: output", "cases", "worst error", "tolerance", "case");
    for (const auto& [key, worst] : worst_errors()) {
      std::printf("%-46s %6d %12.2e %8.1f %%  %s\n", key.c_str(), worst.cases, worst.error, 100 * worst.share, worst.where.c_str());
    }
  }
};
const auto* const printer = testing::AddGlobalTestEnvironment(new Printer);

void record(const GoldenCase& c, std::string_view field, const at::Tensor& got) {
  at::Tensor want = c.output(field).to(at::kDouble).reshape({-1});
  at::Tensor have = got.detach().to(at::kDouble).reshape({-1});
  if (have.numel() != want.numel()) return;
  if (const auto mask = c.compare_mask.find(field); mask != c.compare_mask.end()) {
    const at::Tensor keep = c.input(mask->second).reshape({-1}).to(at::kBool);
    want = at::masked_select(want, keep);
    have = at::masked_select(have, keep);
  }
  std::string name(field);  // r0.m1.grad counts as grad
  if (const size_t dot = name.rfind('.'); dot != std::string::npos) name = name.substr(dot + 1);
  Worst& worst = worst_errors()[c.formula + ": " + name];
  ++worst.cases;
  if (want.numel() == 0) return;
  const Tolerance tolerance = c.tolerance.find(field)->second;
  const at::Tensor error = (have - want).abs();
  const at::Tensor bound = want.abs() * tolerance.rtol + tolerance.atol;
  const double share = at::where(error > 0.0, error / bound, at::zeros_like(error)).max().item<double>();
  worst.error = std::max(worst.error, error.max().item<double>());
  if (share >= worst.share) {
    worst.share = share;
    worst.where = c.name;
  }
}

}  // namespace

void expect_matches(const GoldenCase& c, std::string_view field, const at::Tensor& got) {
  EXPECT_TRUE(c.matches(field, got)) << c.name << " " << field;
  record(c, field, got);
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
