#include "trireme/config/foreign_names.hpp"

#include <algorithm>
#include <array>

#include "config/foreign_tables.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {
namespace {

bool same_name(Origin origin, std::string_view ours, std::string_view given) {
  if (origin == Origin::verl) return ours == given;
  return std::ranges::equal(ours, given, [](char a, char b) { return a == (b == '-' ? '_' : b); });
}

constexpr Origin origins[] = {Origin::openrlhf, Origin::trl, Origin::verl};

}  // namespace

std::string_view name_of(Origin origin) {
  switch (origin) {
    case Origin::openrlhf: return "OpenRLHF";
    case Origin::trl: return "TRL";
    case Origin::verl: break;
  }
  return "verl";
}

std::span<const ForeignName> foreign_names(Origin origin) {
  switch (origin) {
    case Origin::openrlhf: return openrlhf_names();
    case Origin::trl: return trl_names();
    case Origin::verl: break;
  }
  return verl_names();
}

const ForeignName* foreign_name(Origin origin, std::string_view name) {
  const auto table = foreign_names(origin);
  const auto exact = std::ranges::find_if(
      table, [&](const ForeignName& entry) { return same_name(origin, entry.name, name); });
  if (exact != table.end()) return &*exact;
  const auto group = std::ranges::find_if(table, [&](const ForeignName& entry) {
    return entry.name.ends_with(".*") &&
           name.starts_with(entry.name.substr(0, entry.name.size() - 1));
  });
  return group == table.end() ? nullptr : &*group;
}

std::string_view word_here(Origin origin, std::string_view key, std::string_view word) {
  const auto words = foreign_words();
  const auto found = std::ranges::find_if(words, [&](const ForeignWord& entry) {
    return entry.origin == origin && entry.key == key && entry.word == word;
  });
  return found == words.end() ? word : found->here;
}

std::string foreign_table_markdown(Origin origin) {
  std::string out = base::text("| ", name_of(origin), " | here | |\n| --- | --- | --- |\n");
  for (const ForeignName& entry : foreign_names(origin)) {
    std::string here = entry.key.empty() ? "" : base::text("`", entry.key, "`");
    if (!entry.value.empty() && !entry.key.empty())
      here = base::text("`", entry.key, " = ", entry.value, "`");
    if (!entry.others.empty()) here += base::text("; sft, rm, dpo: `", entry.others, "`");
    out += base::text("| `", entry.name, "` | ", here, " | ", entry.note, " |\n");
  }
  out += "\n| key | their word | here |\n| --- | --- | --- |\n";
  for (const ForeignWord& entry : foreign_words()) {
    if (entry.origin == origin)
      out += base::text("| `", entry.key, "` | `", entry.word, "` | `", entry.here, "` |\n");
  }
  return out;
}

namespace {

std::string hint_of(Origin origin, const ForeignName& entry, std::string_view key) {
  const std::string owner = base::text("(a name of ", name_of(origin), ")");
  const bool needless = entry.note.starts_with(foreign_nothing);
  const std::string_view note = entry.note.substr(needless ? foreign_nothing.size() : 0);
  if (key.empty())
    return base::text(owner, needless ? ": not needed here: " : " has no key here: ", note);
  return base::text(owner, ": here it is ", key, entry.value.empty() ? "" : " = ", entry.value,
                    note.empty() ? "" : base::text(" (", note, ")"));
}

// Words that many settings end with.
constexpr std::array<std::string_view, 10> common_ends{
    "model", "path", "name", "enable", "type", "dir", "len", "size", "mode", "shuffle"};

size_t common_beginning(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

std::string foreign_hint(std::string_view name) {
  for (const Origin origin : origins) {
    if (const ForeignName* entry = foreign_name(origin, name))
      return hint_of(origin, *entry, entry->key);
  }
  return "";
}

std::string foreign_end_hint(std::string_view name, bool our_section) {
  const size_t dot = name.rfind('.');
  const std::string_view end = name.substr(dot == std::string_view::npos ? 0 : dot + 1);
  if (dot == std::string_view::npos || std::ranges::count(common_ends, end) > 0) return "";
  const ForeignName* best = nullptr;
  Origin of = Origin::openrlhf;
  size_t most = 0;
  bool several = false;
  for (const Origin origin : origins) {
    for (const ForeignName& entry : foreign_names(origin)) {
      const bool all = entry.name.ends_with(base::text(".", name)),
                 whole = all || entry.name == end;
      if (!our_section && !all) continue;
      if (!whole && (entry.key.empty() || !entry.name.ends_with(base::text(".", end)))) continue;
      const size_t shared = common_beginning(entry.key, name);
      if (best != nullptr && shared < most) continue;
      several = best != nullptr && shared == most && entry.key != best->key && (several || !whole);
      if (best != nullptr && shared == most) continue;
      best = &entry, of = origin, most = shared;
    }
  }
  if (best == nullptr || several) return "";
  std::string key(best->key);
  if (name.starts_with("critic.") && key.starts_with("actor."))
    key.replace(0, std::string_view("actor").size(), "critic");
  return hint_of(of, *best, key);
}

std::string foreign_word_hint(std::string_view key, std::string_view word) {
  std::string owners;
  std::string_view here;
  for (const ForeignWord& entry : foreign_words()) {
    if (entry.key != key || entry.word != word) continue;
    here = entry.here;
    owners += base::text(owners.empty() ? "" : " and ", name_of(entry.origin));
  }
  return here.empty() ? "" : base::text("(a word of ", owners, "): here it is \"", here, "\"");
}

}  // namespace trireme::config
