// A registered key: name, text and the two functions that parsing and dumping need; and the list of them.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/convert.hpp"
#include "trireme/config/key_table.hpp"

// Name and accessor from one spelling, so that a key cannot differ from its member.
#define KEY(path) \
#path, [](auto& root) -> auto& { return root.path; }

namespace trireme::config {

// `Root` is the struct that the key's path starts from.
template <class Root>
class Key {
 public:
  template <class Access>
  Key(std::string_view name, Access access, std::string_view help) : name_(name), help_(help) {
    using T = std::remove_cvref_t<decltype(access(std::declval<Root&>()))>;
    type_ = type_name(static_cast<const T*>(nullptr));
    is_text_ = std::is_same_v<T, std::string> || std::is_same_v<T, Strings>;
    assign_ = [access](const Value& value, const Limits& limits, Root& root) { return read(value, limits, access(root)); };
    write_ = [access](const Root& root) { return write(access(root)); };
  }

  Key& range(double low, double high) { return limits_.low = low, limits_.high = high, *this; }
  Key& at_least(double low) { return limits_.low = low, *this; }
  Key& above(double low) { return limits_.low = low, limits_.low_open = true, *this; }
  Key& below(double high) { return limits_.high = high, limits_.high_open = true, *this; }
  Key& at_most(double high) { return limits_.high = high, *this; }
  Key& words(std::vector<std::string> list) { return limits_.words = std::move(list), *this; }
  Key& ordered() { return limits_.ordered = true, *this; }
  Key& number_as_text() { return limits_.number_as_text = true, *this; }
  Key& never_empty() { return limits_.never_empty = true, *this; }
  // How the key or its default differs from OpenRLHF's, and why.
  Key& departs(std::string_view why) { return departure_ = why, *this; }

  const std::string& name() const { return name_; }
  const Limits& limits() const { return limits_; }
  // Texts take an override's characters as they are: run.name=42 is the text "42".
  bool takes_raw_text() const { return is_text_; }
  // What is wrong, or "".
  std::string assign(Root& root, const Value& value) const { return assign_(value, limits_, root); }
  std::string dump(const Root& root) const { return write_(root); }
  KeyInfo info(std::string_view prefix = "") const {
    static const Root initial{};
    return {std::string(prefix) + name_, type_, limits_.describe(), dump(initial), help_, departure_};
  }

 private:
  std::string name_, type_, help_, departure_;
  bool is_text_ = false;
  Limits limits_;
  std::function<std::string(const Value&, const Limits&, Root&)> assign_;
  std::function<std::string(const Root&)> write_;
};

template <class Root>
class KeyList {
 public:
  template <class Access>
  Key<Root>& add(std::string_view name, Access access, std::string_view help) {
    return keys_.emplace_back(name, access, help);
  }
  const Key<Root>* find(std::string_view name) const {
    for (const auto& key : keys_) {
      if (key.name() == name) return &key;
    }
    return nullptr;
  }
  auto begin() const { return keys_.begin(); }
  auto end() const { return keys_.end(); }

 private:
  std::vector<Key<Root>> keys_;
};

struct Section {
  std::string_view name;
  std::string_view title;  // one line for help and documentation
};
std::span<const Section> sections();

const KeyList<Options>& option_keys();       // all but the elements of reward.source, sections in order
const KeyList<RewardSource>& source_keys();  // of one [[reward.source]]
inline constexpr std::string_view source_prefix = "reward.source.";

// "actor" of "actor.adam.lr"
inline std::string_view section_of(std::string_view key) { return key.substr(0, key.find('.')); }

// What to say about a key that is not ours: an OpenRLHF name and its place here, or something that is not built. "" when nothing
// is known.
std::string hint_for(std::string_view key);

// Parts of option_keys, by file.
void add_run_keys(KeyList<Options>& keys);
void add_model_keys(KeyList<Options>& keys);
void add_reward_keys(KeyList<Options>& keys);
void add_rollout_keys(KeyList<Options>& keys);
void add_algo_keys(KeyList<Options>& keys);
void add_train_keys(KeyList<Options>& keys);
void add_output_keys(KeyList<Options>& keys);

}  // namespace trireme::config
