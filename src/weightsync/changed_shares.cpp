// What share of each group of tensors the trainers changed since the last sync.
#include <algorithm>
#include <bit>

#include "bucket_engine.hpp"

namespace trireme::weightsync {
namespace {

int64_t count_ones(const uint64_t* bits, int64_t count) {
  int64_t ones = 0;
  for (int64_t word = 0; word < count / 64; ++word) ones += std::popcount(bits[word]);
  if (const int64_t rest = count % 64; rest > 0)
    ones += std::popcount(bits[count / 64] & ((uint64_t{1} << rest) - 1));
  return ones;
}

struct GroupCount {
  int64_t elements = 0;
  int64_t changed = 0;
};

}  // namespace

void BucketEngine::count_changes() {
  changed_elements_.clear();
  if (options_.groups.empty()) return;
  for (size_t i = 0; i < sources_.changed.size(); ++i)
    changed_elements_.push_back(count_ones(sources_.changed[i], shard_elements_[i]));
}

std::vector<ChangedShare> BucketEngine::changed_shares() const {
  if (options_.groups.empty() || !comm_.all(shard_elements_.size() == changed_elements_.size()))
    return {};
  std::vector<ChangedShare> shares;
  std::vector<GroupCount> mine;
  for (size_t i = 0; i < options_.groups.size(); ++i) {
    const auto group = static_cast<size_t>(
        std::ranges::find(shares, options_.groups[i], &ChangedShare::group) - shares.begin());
    if (group == shares.size()) {
      shares.push_back({options_.groups[i]});
      mine.emplace_back();
    }
    if (changed_elements_.empty()) continue;  // no source
    mine[group].elements += shard_elements_[i];
    mine[group].changed += changed_elements_[i];
  }
  std::vector<GroupCount> sum(mine.size());
  for (const auto& one : comm_.gather_ragged<GroupCount>(mine)) {
    for (size_t group = 0; group < sum.size(); ++group) {
      sum[group].elements += one[group].elements;
      sum[group].changed += one[group].changed;
    }
  }
  for (size_t group = 0; group < sum.size(); ++group) {
    shares[group].share = static_cast<double>(sum[group].changed) /
                          static_cast<double>(std::max<int64_t>(sum[group].elements, 1));
  }
  return shares;
}

}  // namespace trireme::weightsync
