#include "trireme/config/key_table.hpp"

#include "config/key.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {

template class Key<Options>;
template class Key<RewardSource>;
template class KeyList<Options>;
template class KeyList<RewardSource>;

namespace {

std::vector<KeyInfo> make_infos() {
  std::vector<KeyInfo> infos;
  std::string_view section;
  const auto add_sources = [&] {
    for (const auto& key : source_keys()) infos.push_back(key.info(source_prefix));
  };
  for (const auto& key : option_keys()) {
    if (section == "reward" && section_of(key.name()) != "reward") add_sources();
    section = section_of(key.name());
    infos.push_back(key.info());
  }
  return infos;
}

// "integer, >= 0": type and what is allowed of it
std::string type_text(const KeyInfo& info) {
  return info.allowed.empty() ? info.type : info.type + ", " + info.allowed;
}

// Breaks at spaces, continuation lines indented.
std::string wrapped(std::string_view text, size_t indent, size_t width = 100) {
  const std::string margin(indent, ' ');
  std::string out;
  std::string line = margin;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    if (line.size() > indent && line.size() + 1 + space > width) {
      out += line + "\n";
      line = margin;
    }
    if (line.size() > indent) line += ' ';
    line += text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return out + line + "\n";
}

std::string help_text(const KeyInfo& info) {
  std::string out = base::text("  ", info.name, " = ", info.initial, "   (", type_text(info), ")\n",
                               wrapped(info.help, 6));
  if (!info.departure.empty()) out += wrapped("Note: " + info.departure, 6);
  return out;
}

// '|' separates cells in a Markdown table
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

// A help text as a cell has room for it, and the sentences that follow below the table. Cells are
// cut between sentences, else between clauses.
struct CellText {
  std::string_view cell;
  std::string_view rest;
};
CellText fit_cell(std::string_view text) {
  constexpr size_t longest = 300, room = 270;
  if (cell(text).size() <= longest) return {text, {}};
  size_t end = text.rfind(". ", room);
  if (end == std::string_view::npos) end = text.rfind("; ", room);
  if (end == std::string_view::npos) end = text.rfind(' ', room);
  const size_t rest = text.find_first_not_of(' ', end + 1);
  return {text.substr(0, end + (text[end] == ' ' ? 0 : 1)), text.substr(rest)};
}

std::string title_of(const Section& section) {
  return base::text("[", section.name, "] ", section.title, "\n");
}

// Of each section the keys for this audience, then how they differ from OpenRLHF's.
std::string tables_of(bool expert) {
  std::string out, departures;
  for (const Section& section : sections()) {
    std::string rows, below;
    for (const KeyInfo& info : key_infos()) {
      if (section_of(info.name) != section.name || info.expert != expert) continue;
      const CellText help = fit_cell(info.help);
      rows +=
          base::text("| `", info.name, "` | `", cell(info.initial), "` | ", cell(type_text(info)),
                     " | ", cell(help.cell), help.rest.empty() ? "" : " (more below)", " |\n");
      if (!help.rest.empty()) below += base::text("- `", info.name, "`: ", help.rest, "\n");
      if (!info.departure.empty())
        departures += base::text("| `", info.name, "` | ", cell(info.departure), " |\n");
    }
    if (rows.empty()) continue;
    out += base::text("\n## ", section.name, "\n\n", section.title,
                      ".\n\n| key | default | type | meaning |\n| --- | --- | --- | --- |\n", rows,
                      below.empty() ? "" : "\n" + below);
  }
  return base::text(out,
                    "\n## Departures from OpenRLHF\n\nKeys that OpenRLHF 0.11 names, defaults or "
                    "treats otherwise. All others have its meaning and its default.\n\n"
                    "| key | departure |\n| --- | --- |\n",
                    departures);
}

}  // namespace

const std::vector<KeyInfo>& key_infos() {
  static const std::vector<KeyInfo> infos = make_infos();
  return infos;
}

std::string key_help(std::string_view wanted) {
  std::string out;
  for (const Section& section : sections()) {
    std::string part;
    for (const KeyInfo& info : key_infos()) {
      const bool in_section = section_of(info.name) == section.name;
      const bool asked = wanted.empty() || info.name == wanted ||
                         (info.name.starts_with(wanted) && info.name[wanted.size()] == '.');
      if (in_section && asked) part += help_text(info);
    }
    if (!part.empty()) out += (out.empty() ? "" : "\n") + title_of(section) + part;
  }
  if (!out.empty()) return out;
  std::vector<std::string> names;
  for (const Section& section : sections()) names.emplace_back(section.name);
  for (const KeyInfo& info : key_infos()) names.push_back(info.name);
  const std::string hint = hint_for(wanted);
  std::vector<std::string> of_this_name;  // in other sections
  for (const KeyInfo& info : key_infos()) {
    if (info.name.ends_with(base::text(".", wanted))) of_this_name.push_back(info.name);
  }
  const std::string near =
      of_this_name.empty() ? base::nearest(wanted, names) : base::join(of_this_name);
  throw UserError(
      ExitCode::usage,
      base::text("'", wanted, "' ",
                 !hint.empty() ? hint
                               : base::text("is neither a section nor a key of a deck",
                                            near.empty() ? "" : " (nearest: " + near + ")")));
}

std::string key_table_markdown() {
  return base::text(
      "# Deck keys\n\n"
      "Made from the key table of the program (`trireme --keys`); the same texts come with "
      "`trireme --help-deck SECTION`.\n"
      "Every key may be given on the command line as `section.key=value`. `\"none\"` switches an "
      "optional value off. Durations are seconds,\n"
      "`\"90s\"`, `\"30m\"`, `\"1h30m\"` or `\"2:00:00\"`; sizes are bytes or `\"4 MiB\"`. "
      "Relative paths start at the working directory.\n"
      "[expert_keys.md](expert_keys.md) has the keys that few runs need.\n",
      tables_of(false));
}

std::string expert_key_table_markdown() {
  return base::text(
      "# Expert keys\n\n"
      "Made from the key table of the program (`trireme --expert-keys`). Fine points of single "
      "algorithms, escape hatches, sizes of "
      "buffers and hooks of tests: the defaults are\n"
      "right unless a measurement or an error message says otherwise. They are set as all others, "
      "[deck_keys.md](deck_keys.md).\n",
      tables_of(true));
}

}  // namespace trireme::config
