#include "trireme/ppo/balance.hpp"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"

namespace trireme::ppo {
namespace {

// One bin of a partial solution.
struct Bin {
  int64_t sum = 0;
  std::vector<std::pair<int64_t, int64_t>> items;  // index, length

  bool operator<(const Bin& other) const {
    const size_t size = items.size(), other_size = other.items.size();
    if (std::tie(sum, size) != std::tie(other.sum, other_size))
      return std::tie(sum, size) < std::tie(other.sum, other_size);
    return items < other.items;
  }
  void add(int64_t index, int64_t length) {
    sum += length;
    items.emplace_back(index, length);
  }
};

// k bins of a subset of the items, heaviest first.
struct Partial {
  std::vector<Bin> bins;

  explicit Partial(size_t k) : bins(k) {}
  int64_t spread() const { return bins.front().sum - bins.back().sum; }
  void sort() {
    std::sort(bins.begin(), bins.end(), [](const Bin& a, const Bin& b) { return b < a; });
  }
  // The heaviest bins of one meet the lightest of the other.
  void merge(Partial&& other) {
    for (size_t i = 0; i < bins.size(); ++i) {
      Bin& from = other.bins[bins.size() - 1 - i];
      bins[i].sum += from.sum;
      bins[i].items.insert(bins[i].items.end(), from.items.begin(), from.items.end());
    }
    sort();
  }
};

// The partial solution with the largest spread is merged first.
struct MergesLater {
  bool operator()(const Partial& a, const Partial& b) const {
    if (a.spread() != b.spread()) return a.spread() < b.spread();
    return a.bins.front() < b.bins.front();
  }
};

std::vector<int64_t> ascending(std::span<const int64_t> lengths) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return lengths[static_cast<size_t>(a)] < lengths[static_cast<size_t>(b)];
  });
  return order;
}

// Partial solutions to start from: one item each, or k items of similar length, one in each bin.
std::vector<Partial> seeds(std::span<const int64_t> lengths, int64_t k, BinSize size) {
  const size_t per_seed = size == BinSize::equal ? static_cast<size_t>(k) : 1;
  const std::vector<int64_t> order = ascending(lengths);
  std::vector<Partial> out;
  for (size_t first = 0; first < order.size(); first += per_seed) {
    Partial partial(static_cast<size_t>(k));
    for (size_t j = 0; j < per_seed; ++j) {
      const int64_t item = order[first + j];
      partial.bins[j].add(item, lengths[static_cast<size_t>(item)]);
    }
    partial.sort();
    out.push_back(std::move(partial));
  }
  return out;
}

}  // namespace

Bins balanced_bins(std::span<const int64_t> lengths, int64_t k, BinSize size) {
  VALIDATE(k > 0, ExitCode::internal, "balanced_bins: ", k, " bins");
  VALIDATE(size == BinSize::any || static_cast<int64_t>(lengths.size()) % k == 0,
           ExitCode::internal, "balanced_bins: ", lengths.size(), " items in ", k,
           " bins of equal size");
  Bins out(static_cast<size_t>(k));
  if (lengths.empty()) return out;
  std::priority_queue<Partial, std::vector<Partial>, MergesLater> queue(MergesLater{},
                                                                        seeds(lengths, k, size));
  const auto pop = [&queue] {
    Partial top = std::move(
        const_cast<Partial&>(queue.top()));  // popped at once: the order inside does not matter
    queue.pop();
    return top;
  };
  while (queue.size() > 1) {
    Partial first = pop();
    first.merge(pop());
    queue.push(std::move(first));
  }
  const Partial& whole = queue.top();
  for (size_t i = 0; i < out.size(); ++i) {
    for (const auto& [index, length] : whole.bins[i].items) out[i].push_back(index);
    std::sort(out[i].begin(), out[i].end());
  }
  return out;
}

Bins interleaved_bins(std::span<const int64_t> lengths, int64_t k) {
  VALIDATE(k > 0, ExitCode::internal, "interleaved_bins: ", k, " bins");
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });
  // Rounds of k items, heaviest first; the last may be short. The rounds of the first half are
  // dealt in turn with those of the second, which come from the light end and backwards.
  const auto count = static_cast<int64_t>(order.size());
  const int64_t rounds = base::ceil_div(count, k);
  Bins out(static_cast<size_t>(k));
  const auto deal = [&](int64_t round, bool backwards) {
    const int64_t first = round * k, size = std::min(k, count - first);
    for (int64_t i = 0; i < size; ++i) {
      out[static_cast<size_t>(i)].push_back(
          order[static_cast<size_t>(first + (backwards ? size - 1 - i : i))]);
    }
  };
  for (int64_t round = 0; round < rounds / 2; ++round) {
    deal(round, false);
    deal(rounds - 1 - round, true);
  }
  if (rounds % 2 != 0) deal(rounds / 2, true);
  return out;
}

int64_t first_fit_bins(std::span<const int64_t> lengths, int64_t max_tokens) {
  std::vector<int64_t> filled;
  for (const int64_t length : lengths) {
    const auto bin = std::find_if(filled.begin(), filled.end(),
                                  [&](int64_t tokens) { return tokens + length <= max_tokens; });
    if (bin != filled.end()) {
      *bin += length;
    } else {
      filled.push_back(length);
    }
  }
  return static_cast<int64_t>(filled.size());
}

}  // namespace trireme::ppo
