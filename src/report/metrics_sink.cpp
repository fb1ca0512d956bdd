#include "trireme/report/metrics_sink.hpp"

#include <algorithm>
#include <array>

#include "report/sinks.hpp"
#include "trireme/base/error.hpp"

namespace trireme::report {
namespace {

struct SinkRow {
  const char* name;
  std::unique_ptr<MetricsSink> (*make)(const SinkFacts&);
};
constexpr std::array sinks{SinkRow{"csv", make_csv_sink}, SinkRow{"mlflow", make_mlflow_sink},
                           SinkRow{"tensorboard", make_tensorboard_sink},
                           SinkRow{"wandb", make_wandb_sink}};

}  // namespace

std::vector<std::string> sink_names() {
  std::vector<std::string> names;
  for (const SinkRow& row : sinks) names.emplace_back(row.name);
  return names;
}

std::unique_ptr<MetricsSink> make_sink(std::string_view name, const SinkFacts& facts) {
  const auto row =
      std::ranges::find(sinks, name, [](const SinkRow& one) { return std::string_view(one.name); });
  VALIDATE(row != sinks.end(), ExitCode::configuration, "report.sinks: there is no sink \"", name,
           "\": take one of ", base::join(sink_names()));
  return row->make(facts);
}

std::string path_name(const std::string& metric) {
  std::string out = metric;
  std::ranges::replace(out, '.', '/');
  return out;
}

}  // namespace trireme::report
