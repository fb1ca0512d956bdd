// What differs between the deck with which a checkpoint was saved and the one that goes on from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/config/options.hpp"

namespace trireme::config {

// Whether a key is part of what the run computes, or only of how, where and for how long.
enum class KeyKind : uint8_t { meaning, conduct };

struct ChangedKey {
  std::string key;  // "actor.adam.lr", "reward.source.0.weight"
  std::string was;  // as a deck would write it; "(none)" for a reward source that was not there
  std::string is;
  KeyKind kind = KeyKind::meaning;
};

// In the order of dump_deck.
std::vector<ChangedKey> changed_keys(const Options& was, const Options& is);

// "actor.adam.lr: 0.001 -> 1", a line for each change of that kind; empty when there is none.
std::string describe(const std::vector<ChangedKey>& changes, KeyKind kind);

}  // namespace trireme::config
