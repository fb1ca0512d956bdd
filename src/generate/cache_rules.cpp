#include "cache_rules.hpp"

#include <algorithm>

namespace trireme::generate {

CacheRules cache_rules(const model::ModelSpec& spec) {
  CacheRules rules;
  int64_t widest = 0;
  bool all = true;
  for (const model::Stage& stage : spec.stages) {
    for (const model::Operation& operation : stage.operations) {
      const auto* attend = std::get_if<model::Attend>(&operation);
      if (attend == nullptr) continue;
      all = all && attend->scores.window > 0;
      widest = std::max(widest, attend->scores.window);
    }
  }
  if (all) rules.window = widest;
  const config::RopeScaling& scaling = spec.shape.rope_scaling;
  if (scaling.by_length()) rules.rotated_alike = scaling.original_max_positions;
  rules.each_length = scaling.kind == config::RopeKind::dynamic;
  return rules;
}

}  // namespace trireme::generate
