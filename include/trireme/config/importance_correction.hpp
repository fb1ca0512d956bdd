// The meaning of a deck's algo.advantage.is_correction_*.
#pragma once

#include "trireme/config/options.hpp"

namespace trireme::config {

// The correction that the options ask for, presets written out: tis = token + clip, icepop = token
// + mask, seq-mask-tis = seq + mask, all with the ratio as gate.
struct ImportanceCorrection {
  bool enabled = false;
  CorrectionLevel level = CorrectionLevel::token;
  CorrectionMode mode = CorrectionMode::clip;
  CorrectionGate gate = CorrectionGate::ratio;
  double low = 0.5;
  double high = 5.0;
  bool operator==(const ImportanceCorrection&) const = default;
};
ImportanceCorrection importance_correction(const AdvantageOptions& options);

}  // namespace trireme::config
