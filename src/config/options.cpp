#include <algorithm>

#include "trireme/config/importance_correction.hpp"
#include "trireme/config/options.hpp"

namespace trireme::config {

bool Options::has_plugins() const {
  return std::any_of(reward.source.begin(), reward.source.end(),
                     [](const RewardSource& source) { return source.kind == RewardKind::plugin; });
}

ImportanceCorrection importance_correction(const AdvantageOptions& options) {
  ImportanceCorrection out;
  out.enabled = options.is_correction_enable;
  out.low = options.is_correction_threshold[0];
  out.high = options.is_correction_threshold[1];
  switch (options.is_correction_type) {
    case CorrectionType::tis: break;
    case CorrectionType::icepop: out.mode = CorrectionMode::mask; break;
    case CorrectionType::seq_mask_tis:
      out.level = CorrectionLevel::sequence;
      out.mode = CorrectionMode::mask;
      break;
    case CorrectionType::custom:
      out.level = options.is_correction_level;
      out.mode = options.is_correction_mode;
      out.gate = options.is_correction_gating;
      break;
  }
  return out;
}

}  // namespace trireme::config
