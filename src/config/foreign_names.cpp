#include "trireme/config/foreign_names.hpp"

#include <algorithm>

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
  const auto found = std::ranges::find_if(
      table, [&](const ForeignName& entry) { return same_name(origin, entry.name, name); });
  return found == table.end() ? nullptr : &*found;
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
    if (!entry.value.empty()) here = base::text("`", entry.key, " = ", entry.value, "`");
    out += base::text("| `", entry.name, "` | ", here, " | ", entry.note, " |\n");
  }
  out += "\n| key | their word | here |\n| --- | --- | --- |\n";
  for (const ForeignWord& entry : foreign_words()) {
    if (entry.origin == origin)
      out += base::text("| `", entry.key, "` | `", entry.word, "` | `", entry.here, "` |\n");
  }
  return out;
}

std::string foreign_hint(std::string_view name) {
  for (const Origin origin : origins) {
    const ForeignName* entry = foreign_name(origin, name);
    if (entry == nullptr) continue;
    const std::string owner = base::text("(a name of ", name_of(origin), "): here it is ");
    if (entry->key.empty()) return base::text(owner, entry->note);
    return base::text(owner, entry->key, entry->value.empty() ? "" : " = ", entry->value,
                      entry->note.empty() ? "" : base::text(" (", entry->note, ")"));
  }
  return "";
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
