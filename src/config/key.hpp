// A registered key: name, text, place and type of its member; and the list of them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/convert.hpp"
#include "trireme/config/key_table.hpp"

// Name and accessor from one spelling, so that a key cannot differ from its member.
#define KEY(path) \
#path, [](auto& root) -> auto& { return root.path; }

namespace trireme::config {

// What parsing and dumping need of a member's type. Keys hold this and the member's place, so that
// code is made per type of member and not per key.
struct MemberType {
  std::string (*name)();
  std::string (*read)(const Value& value, const Limits& limits, void* member);
  std::string (*write)(const void* member);
  bool is_text;
};

template <class T>
inline constexpr MemberType member_type{
    [] { return type_name(static_cast<const T*>(nullptr)); },
    [](const Value& value, const Limits& limits, void* member) {
      return read(value, limits, *static_cast<T*>(member));
    },
    [](const void* member) { return write(*static_cast<const T*>(member)); },
    std::is_same_v<T, std::string> || std::is_same_v<T, Strings>,
};

// `Root` is the struct that the key's path starts from; `offset` of the member in it, in bytes.
template <class Root>
class Key {
 public:
  Key(std::string_view name, const MemberType& type, std::ptrdiff_t offset, std::string_view help)
      : name_(name), help_(help), type_(&type), offset_(offset) {}

  Key& range(double low, double high) { return limits_.low = low, limits_.high = high, *this; }
  Key& at_least(double low) { return limits_.low = low, *this; }
  Key& above(double low) { return limits_.low = low, limits_.low_open = true, *this; }
  Key& below(double high) { return limits_.high = high, limits_.high_open = true, *this; }
  Key& at_most(double high) { return limits_.high = high, *this; }
  Key& words(std::vector<std::string> list) { return limits_.words = std::move(list), *this; }
  Key& ordered() { return limits_.ordered = true, *this; }
  Key& number_as_text() { return limits_.number_as_text = true, *this; }
  Key& never_empty() { return limits_.never_empty = true, *this; }
  // An escape hatch or a hook of tests: few runs need it, and it has a page of its own.
  Key& expert() { return expert_ = true, *this; }
  // How the key or its default differs from OpenRLHF's, and why.
  Key& departs(std::string_view why) { return departure_ = why, *this; }

  const std::string& name() const { return name_; }
  const Limits& limits() const { return limits_; }
  // Texts take an override's characters as they are: run.name=42 is the text "42".
  bool takes_raw_text() const { return type_->is_text; }
  // The problem, or "".
  std::string assign(Root& root, const Value& value) const {
    return type_->read(value, limits_, reinterpret_cast<std::byte*>(&root) + offset_);
  }
  std::string dump(const Root& root) const {
    return type_->write(reinterpret_cast<const std::byte*>(&root) + offset_);
  }
  KeyInfo info(std::string_view prefix = "") const {
    static const Root initial{};
    return {std::string(prefix) + name_,
            type_->name(),
            limits_.describe(),
            dump(initial),
            help_,
            departure_,
            expert_};
  }

 private:
  std::string name_, help_, departure_;
  const MemberType* type_;
  std::ptrdiff_t offset_;
  Limits limits_;
  bool expert_ = false;
};

template <class Root>
class KeyList {
 public:
  // `access` leads from a Root to one of its members.
  template <class Access>
  Key<Root>& add(std::string_view name, Access access, std::string_view help) {
    const auto& member = access(root_);
    using T = std::remove_cvref_t<decltype(member)>;
    return insert(
        name, member_type<T>,
        reinterpret_cast<const std::byte*>(&member) - reinterpret_cast<const std::byte*>(&root_),
        help);
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
  Key<Root>& insert(std::string_view name, const MemberType& type, std::ptrdiff_t offset,
                    std::string_view help) {
    return keys_.emplace_back(name, type, offset, help);
  }

  std::vector<Key<Root>> keys_;
  Root root_{};  // where members lie
};
extern template class Key<Options>;
extern template class Key<RewardSource>;
extern template class KeyList<Options>;
extern template class KeyList<RewardSource>;

struct Section {
  std::string_view name;
  std::string_view title;  // one line for help and documentation
};
std::span<const Section> sections();

const KeyList<Options>& option_keys();  // all but the elements of reward.source, sections in order
const KeyList<RewardSource>& source_keys();  // of one [[reward.source]]
inline constexpr std::string_view source_prefix = "reward.source.";

// "actor" of "actor.adam.lr"
inline std::string_view section_of(std::string_view key) { return key.substr(0, key.find('.')); }

// What to say about a key that is not ours: an OpenRLHF name and its place here, or something that
// is not built. "" when nothing is known.
std::string hint_for(std::string_view key);

// Parts of option_keys, by file.
void add_run_keys(KeyList<Options>& keys);
void add_model_keys(KeyList<Options>& keys);
void add_policy_loss_keys(KeyList<Options>& keys);  // in add_model_keys, those of [actor]
void add_reward_keys(KeyList<Options>& keys);
void add_environment_keys(KeyList<Options>& keys);
void add_rollout_keys(KeyList<Options>& keys);
void add_algo_keys(KeyList<Options>& keys);
void add_train_keys(KeyList<Options>& keys);
void add_output_keys(KeyList<Options>& keys);

}  // namespace trireme::config
