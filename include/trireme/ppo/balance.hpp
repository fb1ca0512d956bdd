// Sequences into bins of near-equal token counts: ranks and micro-batches. Pure integer functions
// of the lengths; every rank computes the same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::ppo {

// Items of each bin, in order.
using Bins = std::vector<std::vector<int64_t>>;

// k bins by the largest differencing method (Karmarkar and Karp 1982; OpenRLHF:
// get_seqlen_balanced_partitions). With `equal` every bin has the same number of items, which k
// must divide.
enum class BinSize : uint8_t { any, equal };
Bins balanced_bins(std::span<const int64_t> lengths, int64_t k, BinSize size);

// k bins whose sizes differ by at most one: the items in rounds of k by falling length, equal ones
// in their order, of which the last may be short; the heaviest round, the lightest backwards, the
// next heaviest ... (OpenRLHF: balance_experiences). For ranks: n log n time and n memory, while
// balanced_bins takes n k log n and n k.
Bins interleaved_bins(std::span<const int64_t> lengths, int64_t k);

// Bins that first-fit needs for the lengths in this order, none above `max_tokens` but single items
// that are longer (OpenRLHF: get_minimum_num_micro_batch_size).
int64_t first_fit_bins(std::span<const int64_t> lengths, int64_t max_tokens);

}  // namespace trireme::ppo
