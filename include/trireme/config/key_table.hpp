// The list of deck keys. One registration per key (src/config/keys_*.cpp) gives parsing, dumping,
// the unknown-key check, the help text and the documentation; the default is that of the option
// struct.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/config/options.hpp"

namespace trireme::config {

// One key as people read it.
struct KeyInfo {
  std::string name;  // "actor.adam.lr"; keys of [[reward.source]] are "reward.source.kind"
  std::string
      type;  // "number", "integer", "true|false", "text", "list of texts", "one of gae, rloo", ...
  std::string allowed;  // "> 0", "0 ... 1", "" when the type says all
  std::string initial;  // default as a deck would write it
  std::string help;     // one sentence or more, ends with a full stop
  std::string
      departure;  // how and why the key or its default differs from OpenRLHF's; "" when it does not
  bool expert = false;  // an escape hatch or a hook of tests, on a page of its own
};

// All keys in the order of dump_deck.
const std::vector<KeyInfo>& key_infos();

// Help of one section ("actor") or key ("actor.adam.lr") for a terminal; of all sections when
// empty. Throws UserError(usage) with the nearest name when there is none.
std::string key_help(std::string_view section_or_key = {});

// docs/user/deck_keys.md and docs/user/expert_keys.md
std::string key_table_markdown();
std::string expert_key_table_markdown();

}  // namespace trireme::config
