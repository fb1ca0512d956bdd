#include "torch/torch.hpp"

#include "trireme/learn/bad_batches.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/report/side_output.hpp"

namespace trireme::learn {
namespace {

constexpr int most_kept = 4;

std::span<const float> of_sequence(const std::vector<float>& column, const Samples& samples,
                                   int64_t i) {
  if (column.empty()) return {};
  return std::span(column).subspan(static_cast<size_t>(samples.begin(i)),
                                   static_cast<size_t>(samples.length(i)));
}

// One line per sequence; `suspects` receives the ids of those with a number that is not finite.
std::string lines_of(const Samples& samples, std::vector<std::string>& suspects) {
  std::string lines;
  for (int64_t i = 0; i < samples.size(); ++i) {
    const auto s = static_cast<size_t>(i);
    data::JsonObject line;
    line.add("id", static_cast<int64_t>(samples.id[s]))
        .add("prompt_row", samples.prompt_row[s])
        .add("ids", samples.tokens_of(i));
    if (!samples.reward.empty()) line.add("reward", double{samples.reward[s]});
    bool finite = samples.reward.empty() || std::isfinite(samples.reward[s]);
    const std::pair<const char*, const std::vector<float>*> columns[] = {
        {"rollout_log_probs", &samples.log_probs}, {"old_log_probs", &samples.old_log_probs},
        {"ref_log_probs", &samples.ref_log_probs}, {"values", &samples.values},
        {"advantages", &samples.advantages},       {"returns", &samples.returns}};
    for (const auto& [name, column] : columns) {
      const auto values = of_sequence(*column, samples, i);
      if (values.empty()) continue;
      line.add(name, values);
      finite = finite && std::all_of(values.begin(), values.end(),
                                     [](float value) { return std::isfinite(value); });
    }
    if (!finite) suspects.push_back(std::to_string(samples.id[s]));
    lines += line.str() + '\n';
  }
  return lines;
}

}  // namespace

void BadBatches::save(const learn::UpdateStep& step, int64_t iteration, int64_t number) {
  std::vector<Samples> parts;
  for (const ppo::Experience& batch : step.micro_batches) parts.push_back(batch.to_samples());
  keep(parts, base::text("iteration-", iteration, "-step-", number));
}

void BadBatches::save(std::span<const RowBatch> batches, int64_t iteration) {
  std::vector<Samples> parts;
  for (const RowBatch& batch : batches) parts.push_back(batch.samples);
  keep(parts, base::text("iteration-", iteration));
}

void BadBatches::keep(const std::vector<Samples>& parts, const std::string& name) {
  if (kept_ >= most_kept) return;
  ++kept_;
  std::string lines;
  std::vector<std::string> suspects;
  for (const Samples& part : parts) lines += lines_of(part, suspects);
  if (lines.empty()) return;
  const auto file = folder_ / base::text(name, "-rank-", rank_, ".jsonl");
  report::side_output(file.string(), [&] {
    const base::FileWork work{"write", file};
    std::filesystem::create_directories(folder_);
    base::write_file_atomically(file, lines);
  });
  log::warning(base::text("the sequences of that step are in ", file.string(),
                          suspects.empty()
                              ? "; what went into it is finite, so the weights or the pass are not"
                              : "; not finite in themselves: " + base::join(suspects)));
}

}  // namespace trireme::learn
