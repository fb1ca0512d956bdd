// Losses of `trireme dpo` (algo.dpo.loss). One line per loss says what parsing, help,
// validation and the loop need to know of it; its arithmetic is one function in ppo/preference.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trireme::config {

enum class DpoLoss {
  sigmoid,
  ipo,
  hinge,
  robust,
  ipo_norm,
  sigmoid_norm,
  aot,
  aot_unpaired,
  apo_zero,
  apo_down,
  kto,
  apo_zero_unpaired,
  orpo,
  simpo,
  cpo
};

// The rows that it learns from: pairs of answers, or single answers with a label.
enum class DpoRows : uint8_t { pairs, labelled };

struct DpoLossTraits {
  DpoLoss loss;
  std::string_view word;  // in the deck
  DpoRows rows;
  bool reference;  // compares with the frozen reference
  bool smooths;    // algo.dpo.label_smoothing counts
  bool sorts;      // compares order statistics of the whole optimizer step
};

inline constexpr std::array dpo_loss_table{
    DpoLossTraits{DpoLoss::sigmoid, "sigmoid", DpoRows::pairs, true, true, false},
    DpoLossTraits{DpoLoss::ipo, "ipo", DpoRows::pairs, true, false, false},
    DpoLossTraits{DpoLoss::hinge, "hinge", DpoRows::pairs, true, false, false},
    DpoLossTraits{DpoLoss::robust, "robust", DpoRows::pairs, true, true, false},
    DpoLossTraits{DpoLoss::ipo_norm, "ipo_norm", DpoRows::pairs, true, false, false},
    DpoLossTraits{DpoLoss::sigmoid_norm, "sigmoid_norm", DpoRows::pairs, true, false, false},
    DpoLossTraits{DpoLoss::aot, "aot", DpoRows::pairs, true, true, true},
    DpoLossTraits{DpoLoss::aot_unpaired, "aot_unpaired", DpoRows::pairs, true, true, true},
    DpoLossTraits{DpoLoss::apo_zero, "apo_zero", DpoRows::pairs, true, false, false},
    DpoLossTraits{DpoLoss::apo_down, "apo_down", DpoRows::pairs, true, false, false},
    DpoLossTraits{DpoLoss::kto, "kto", DpoRows::labelled, true, false, false},
    DpoLossTraits{DpoLoss::apo_zero_unpaired, "apo_zero_unpaired", DpoRows::labelled, true, false,
                  false},
    DpoLossTraits{DpoLoss::orpo, "orpo", DpoRows::pairs, false, false, false},
    DpoLossTraits{DpoLoss::simpo, "simpo", DpoRows::pairs, false, true, false},
    DpoLossTraits{DpoLoss::cpo, "cpo", DpoRows::pairs, false, true, false},
};

constexpr const DpoLossTraits& traits(DpoLoss loss) {
  return dpo_loss_table[static_cast<size_t>(loss)];
}

namespace detail {
constexpr bool dpo_losses_in_order() {
  for (size_t i = 0; i < dpo_loss_table.size(); ++i) {
    if (static_cast<size_t>(dpo_loss_table[i].loss) != i) return false;
  }
  return dpo_loss_table.back().loss == DpoLoss::cpo;  // the last enumerator: none is missing
}
static_assert(dpo_losses_in_order(), "dpo_loss_table has one line per enumerator, in their order");
}  // namespace detail

}  // namespace trireme::config
