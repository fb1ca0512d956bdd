#include "trireme/config/deck.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "config/key.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/foreign_file.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/foreign_names.hpp"

namespace trireme::config {

namespace {

constexpr uint64_t max_deck_bytes = uint64_t{4} << 20;
constexpr size_t max_sources = 64;

// Splits "reward.source.2.weight" into 2 and "weight"; false when the key is not of this form.
bool split_source_key(std::string_view key, size_t& index, std::string_view& member) {
  if (!key.starts_with(source_prefix)) return false;
  key.remove_prefix(source_prefix.size());
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
  if (error != std::errc{}) return false;
  key.remove_prefix(static_cast<size_t>(end - key.data()));
  member = key.empty() ? key : key.substr(1);
  return key.empty() || key.front() == '.';
}

// Puts entries into Options and collects what is wrong with them.
class Assignment {
 public:
  explicit Assignment(std::vector<std::string>& mistakes) : mistakes_(mistakes) {}

  // `where` is "deck.toml:12" or "command line".
  void apply(const Entry& entry, const std::string& where, bool is_override) {
    size_t index = 0;
    std::string_view member;
    if (entry.key == "reward.source") {
      mistake(where, "reward.source is a list of tables: write [[reward.source]] in the deck");
    } else if (split_source_key(entry.key, index, member)) {
      apply_source(entry, where, index, member, is_override);
    } else if (const auto* key = option_keys().find(entry.key)) {
      assign(*key, options_, entry, where);
    } else {
      unknown(entry.key, where);
    }
  }

  Options take() { return std::move(options_); }

 private:
  template <class Root>
  void assign(const Key<Root>& key, Root& root, const Entry& entry, const std::string& where) {
    Value value = entry.value;
    if (!entry.raw.empty() && key.takes_raw_text() && !value.get<std::string>() &&
        !value.get<std::vector<Value>>()) {
      value = Value{entry.raw};
    }
    if (const std::string problem = key.assign(root, value); !problem.empty()) {
      const auto* word = value.get<std::string>();
      const std::string hint = word ? foreign_word_hint(entry.key, *word) : "";
      mistake(where, base::text(entry.key, " ", problem, hint.empty() ? "" : " ", hint));
    }
  }

  void apply_source(const Entry& entry, const std::string& where, size_t index,
                    std::string_view member, bool is_override) {
    auto& sources = options_.reward.source;
    if (index >= sources.size()) {
      if (is_override || index >= max_sources) {
        mistake(where,
                base::text(entry.key, ": the deck has ", sources.size(),
                           " [[reward.source]] (numbered from 0, at most ", max_sources, ")"));
        return;
      }
      sources.resize(index + 1);
    }
    if (member.empty()) {  // an empty [[reward.source]] has all defaults
      if (!entry.value.get<OtherValue>())
        mistake(where, base::text(entry.key, " is a table, not a key: set its keys, as in ",
                                  entry.key, ".weight = 0.5"));
      return;
    }
    if (const auto* key = source_keys().find(member)) {
      assign(*key, sources[index], entry, where);
    } else {
      unknown_source_key(entry.key, member, where);
    }
  }

  void unknown_source_key(const std::string& name, std::string_view member,
                          const std::string& where) {
    std::vector<std::string> names;
    for (const auto& key : source_keys()) names.push_back(key.name());
    const std::string near = base::nearest(member, names);
    mistake(where, base::text(name, " is not a key",
                              near.empty() ? base::text(" (known: ", base::join(names), ")")
                                           : base::text(" (nearest: ", near, ")")));
  }

  void unknown(const std::string& name, const std::string& where) {
    const std::string section(section_of(name));
    const bool known_section = std::any_of(sections().begin(), sections().end(),
                                           [&](const Section& s) { return s.name == section; });
    if (const std::string hint = hint_for(name); !hint.empty()) {
      mistake(where, name + " " + hint);
    } else if (!known_section) {
      // One line per unknown section, not one per key of it.
      if (unknown_sections_.insert(section).second)
        mistake(where, unknown_section_text(name, section));
    } else if (name == section) {
      mistake(where, base::text(name, " is a section, not a key (`trireme --help-deck ", section,
                                "` lists its keys): write them below [", section, "], or as ",
                                section, ".key=value on the command line"));
    } else {
      std::vector<std::string> names;
      for (const auto& key : option_keys()) names.push_back(key.name());
      const std::string near = nearest_key(name, names);
      mistake(where, base::text(name, " is not a key",
                                near.empty() ? base::text(" (`trireme --help-deck ", section,
                                                          "` lists those of its section)")
                                             : base::text(" (nearest: ", near, ")")));
    }
  }

  static std::string unknown_section_text(const std::string& name, const std::string& section) {
    std::vector<std::string> names;
    for (const auto& s : sections()) names.emplace_back(s.name);
    if (name == section)
      return base::text(name, " is not a key (keys are in a section: ", base::join(names), ")");
    const std::string near = base::nearest(section, names);
    return base::text("[", section, "] is not a section",
                      near.empty() ? base::text(" (sections: ", base::join(names), ")")
                                   : base::text(" (nearest: [", near, "])"));
  }

  // By spelling; else a key of the same section that ends in the same word (actor.lr ->
  // actor.adam.lr).
  static std::string nearest_key(const std::string& name, const std::vector<std::string>& names) {
    const std::string tail = name.substr(name.rfind('.'));
    for (const auto& known : names) {
      if (section_of(known) == section_of(name) && known.ends_with(tail)) return known;
    }
    return base::nearest(name, names);
  }

  void mistake(const std::string& where, const std::string& what) {
    mistakes_.push_back(where + ": " + what);
  }

  Options options_;
  std::vector<std::string>& mistakes_;
  std::set<std::string> unknown_sections_;
};

std::vector<Entry> read_overrides(std::span<const std::string> overrides,
                                  std::vector<std::string>& mistakes) {
  std::vector<Entry> entries;
  std::set<std::string> seen;
  for (const std::string& text : overrides) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      mistakes.push_back(
          base::text("command line: '", text, "' is no override: write section.key=value"));
      continue;
    }
    Entry entry{text.substr(0, equals), {}, 0, text.substr(equals + 1)};
    if (!read_toml_value(entry.raw, entry.value)) {
      mistakes.push_back(
          base::text("command line: ", entry.key, ": the value is neither TOML nor a plain text"));
    } else if (!seen.insert(entry.key).second) {
      mistakes.push_back(base::text("command line: ", entry.key, " is set twice"));
    } else {
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

[[noreturn]] void report(std::string_view name, const std::vector<std::string>& mistakes) {
  if (mistakes.size() == 1) throw UserError(ExitCode::configuration, mistakes[0]);
  throw UserError(
      ExitCode::configuration,
      base::text(name, " has ", mistakes.size(), " mistakes:\n  ", base::join(mistakes, "\n  ")));
}

// The same key may be written in two ways that TOML keeps apart: [actor] with adam.lr, and
// "actor.adam.lr" in quotes.
void report_twice(const std::vector<Entry>& entries, std::string_view name,
                  std::vector<std::string>& mistakes) {
  std::map<std::string, int> line_of;
  for (const auto& entry : entries) {
    const auto [it, is_new] = line_of.emplace(entry.key, entry.line);
    if (!is_new)
      mistakes.push_back(base::text(name, ":", entry.line, ": ", entry.key,
                                    " is set twice (first in line ", it->second, ")"));
  }
}

}  // namespace

Options parse_deck(std::string_view text, std::string_view name,
                   std::span<const std::string> overrides) {
  std::vector<std::string> mistakes;
  Assignment assignment(mistakes);
  const std::vector<Entry> entries = read_toml(text, name, mistakes);
  report_twice(entries, name, mistakes);
  for (const Entry& entry : entries)
    assignment.apply(entry, base::text(name, ":", entry.line), false);
  const bool readable = mistakes.empty() || !entries.empty();
  for (const Entry& entry : read_overrides(overrides, mistakes)) {
    // Without a readable deck there are no sources that an override could change.
    if (readable || !entry.key.starts_with(source_prefix))
      assignment.apply(entry, "command line", true);
  }
  if (!mistakes.empty()) report(name, mistakes);
  return assignment.take();
}

Options load_deck(const std::filesystem::path& path, std::span<const std::string> overrides) {
  std::string text = base::read_file(path, max_deck_bytes);
  base::refuse_foreign_file(text, path, base::Expected::text);
  Options options = parse_deck(text, path.string(), overrides);
  if (options.run.name.empty()) options.run.name = path.stem().string();
  return options;
}

std::string dump_deck(const Options& options) {
  std::string out;
  std::string_view section;
  const auto add_sources = [&] {
    for (const RewardSource& source : options.reward.source) {
      out += "\n[[reward.source]]\n";
      for (const auto& key : source_keys()) out += key.name() + " = " + key.dump(source) + "\n";
    }
  };
  for (const auto& key : option_keys()) {
    const std::string_view name = key.name();
    if (section_of(name) != section) {
      if (section == "reward") add_sources();
      section = section_of(name);
      out += base::text(out.empty() ? "" : "\n", "[", section, "]\n");
    }
    out += base::text(name.substr(section.size() + 1), " = ", key.dump(options), "\n");
  }
  return out;
}

bool is_dump(std::string_view text) {
  try {
    return dump_deck(parse_deck(text)) == text;
  } catch (const UserError&) { return false; }
}

double parse_duration(std::string_view text, std::string_view key) {
  const auto seconds = duration_seconds(text);
  VALIDATE(seconds.has_value(), ExitCode::configuration, key, " = \"", text,
           "\" is no duration: write seconds, \"90s\", \"30m\", \"1h30m\" or \"2:00:00\"");
  return *seconds;
}

}  // namespace trireme::config
