// F37: only the tokens with the highest entropies of an optimizer step are learned from (Wang et
// al. 2025, arXiv 2506.01939; TRL: top_entropy_quantile).
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace trireme::ppo {

// The entropy that the share `top` of all ranks' entropies reaches: their (1 - top) quantile, with
// linear interpolation between neighbours as torch.quantile has it. Minus infinity where there is
// not one. Memory does not grow with the number of ranks. Collective through `sum`, which adds up
// the numbers over the ranks.
double top_entropy_threshold(std::span<const float> entropies, double top,
                             const std::function<void(std::span<double>)>& sum);

}  // namespace trireme::ppo
