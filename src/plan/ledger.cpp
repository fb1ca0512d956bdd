#include "trireme/plan/ledger.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/checked.hpp"

namespace trireme::plan {

const char* to_string(Phase phase) {
  constexpr const char* names[phase_count] = {"start", "rollout",  "reward", "log-probs", "forward",
                                              "head",  "backward", "step",   "sync",      "save"};
  return names[static_cast<size_t>(phase)];
}

const char* to_string(Kind kind) {
  constexpr const char* names[kind_count] = {"tensors", "exchanges", "libraries"};
  return names[static_cast<size_t>(kind)];
}

void Ledger::add(Entry entry) {
  if (entry.bytes > 0) entries_.push_back(std::move(entry));
}

int64_t Ledger::bytes(Place place, Phase phase) const {
  int64_t sum = 0;
  for (const Entry& entry : entries_) {
    if (entry.place == place && (entry.phases & phase_bit(phase)) != 0)
      sum = base::checked_add(sum, entry.bytes);
  }
  return sum;
}

int64_t Ledger::bytes(Place place, Phase phase, Accuracy accuracy) const {
  int64_t sum = 0;
  for (const Entry& entry : entries_) {
    if (entry.place == place && entry.accuracy == accuracy &&
        (entry.phases & phase_bit(phase)) != 0)
      sum = base::checked_add(sum, entry.bytes);
  }
  return sum;
}

int64_t Ledger::peak(Place place, Kind kind) const {
  int64_t peak = 0;
  for (int i = 0; i < phase_count; ++i) {
    int64_t sum = 0;
    for (const Entry& entry : entries_) {
      if (entry.place == place && entry.kind == kind &&
          (entry.phases & phase_bit(static_cast<Phase>(i))) != 0)
        sum = base::checked_add(sum, entry.bytes);
    }
    peak = std::max(peak, sum);
  }
  return peak;
}

int64_t Ledger::resident_peak() const {
  int64_t peak = 0;
  for (int i = 0; i < phase_count; ++i) {
    int64_t sum = 0;
    for (const Entry& entry : entries_) {
      if (entry.place == Place::host && (entry.phases & phase_bit(static_cast<Phase>(i))) != 0)
        sum += entry.bytes + entry.mapped;
    }
    peak = std::max(peak, sum);
  }
  return peak;
}

Phase Ledger::peak_phase(Place place) const {
  Phase best = Phase::start;
  for (int i = 1; i < phase_count; ++i) {
    const auto phase = static_cast<Phase>(i);
    if (bytes(place, phase) > bytes(place, best)) best = phase;
  }
  return best;
}

std::vector<Entry> Ledger::largest(Place place, Phase phase, size_t count) const {
  std::vector<Entry> out;
  for (const Entry& entry : entries_) {
    if (entry.place == place && (entry.phases & phase_bit(phase)) != 0) out.push_back(entry);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Entry& a, const Entry& b) { return a.bytes > b.bytes; });
  if (out.size() > count) out.resize(count);
  return out;
}

}  // namespace trireme::plan
