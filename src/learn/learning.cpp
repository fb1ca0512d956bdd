#include "torch/torch.hpp"

#include "trireme/learn/learning.hpp"

#include <numeric>
#include <vector>

namespace trireme::learn {

PipelineTotals totals_of(const ppo::PipelineReport& report) {
  const auto total = [](const std::vector<float>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0);
  };
  return {total(report.kl), total(report.group_std), total(report.returns),
          static_cast<double>(report.kl.size()), 0};
}

}  // namespace trireme::learn
