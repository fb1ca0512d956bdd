#include "report/page_parts.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "report/html_text.hpp"
#include "trireme/base/text.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::report {
namespace {

constexpr size_t longest_text = 4000;  // bytes of a prompt or an answer
constexpr size_t most_changed = 4;     // prompts whose answers are compared

// The beginning of a long text, cut between characters.
std::string beginning(const std::string& text) {
  if (text.size() <= longest_text) return html(text);
  size_t end = longest_text;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return base::text(html(std::string_view(text).substr(0, end)), "\n… (", text.size() - end,
                    " more bytes: see samples.jsonl)");
}

std::string chip(const std::string& name, const std::string& value) {
  return base::text("<span class=\"chip\">", html(name), " <b>", html(value), "</b></span>");
}

std::string chips(const ShownSample& sample) {
  std::string out = chip("reward", short_number(sample.reward));
  for (const auto& [name, value] : sample.parts) out += chip(name, short_number(value));
  if (sample.tokens > 0) out += chip("tokens", std::to_string(sample.tokens));
  if (!sample.finish.empty()) out += chip("ended by", sample.finish);
  return out;
}

std::string prompt_of(const ShownSample& sample) {
  return base::text(
      "<pre class=\"prompt\">", beginning(sample.prompt), "</pre>",
      sample.label.empty() ? "" : base::text("<p>", chip("label", sample.label), "</p>"));
}

std::string card(const char* kind, const char* name, const ShownSample& sample) {
  return base::text("<article class=\"sample ", kind, "\"><p><b>Iteration ", sample.iteration,
                    "</b> · ", name, "</p><p>", chips(sample), "</p>", prompt_of(sample), "<pre>",
                    beginning(sample.response), "</pre></article>\n");
}

std::string difference(const std::pair<ShownSample, ShownSample>& answers) {
  const auto& [first, last] = answers;
  std::string text;
  for (const DiffPiece& piece : word_difference(first.response, last.response)) {
    const std::string shown = beginning(piece.text);
    text += piece.in == DiffPiece::In::first    ? "<del>" + shown + "</del>"
            : piece.in == DiffPiece::In::second ? "<ins>" + shown + "</ins>"
                                                : shown;
  }
  return base::text(
      "<article class=\"sample\"><p><b>Iteration ", first.iteration, " → ", last.iteration,
      "</b></p><p>",
      chip("reward", base::text(short_number(first.reward), " → ", short_number(last.reward))),
      "</p>", prompt_of(last), "<pre>", text, "</pre></article>\n");
}

// First, middle and last of those that have picks.
std::vector<const SamplePicks*> shown_iterations(const ShownSamples& samples) {
  std::vector<const SamplePicks*> all;
  for (const auto& [iteration, picks] : samples.iterations()) all.push_back(&picks);
  if (all.size() <= 3) return all;
  return {all.front(), all[all.size() / 2], all.back()};
}

std::string cell(const std::string& text, bool number = false) {
  return base::text(number ? "<td class=\"n\">" : "<td>", text, "</td>");
}

std::string table(const std::string& head, const std::string& rows) {
  return base::text("<div class=\"scroll\"><table><thead><tr>", head, "</tr></thead><tbody>", rows,
                    "</tbody></table></div>\n");
}

// As one word of a shell.
std::string quoted(const std::string& word) {
  const bool plain = std::ranges::all_of(word, [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("/._-+=:,@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain && !word.empty()) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string ending(const RunStart& start, bool newest) {
  if (start.ended == 0) return newest ? "–" : "without a word";
  if (start.how == "error") return "error";
  return base::text(html(start.how), ", exit code ", start.exit_code);
}

}  // namespace

std::string samples_part(const RunHistory& run) {
  const auto iterations = shown_iterations(run.samples());
  if (iterations.empty()) return "";
  std::string cards;
  for (const SamplePicks* picks : iterations) {
    cards += card("best", "best", picks->best);
    if (picks->seen > 1) cards += card("worst", "worst", picks->worst);
    if (picks->seen > 2) cards += card("any", "by chance", picks->any);
  }
  std::string out = "<section><h2>Samples</h2>";
  for (const char* id : {"all", "best", "worst", "any"})
    out += base::text("<input class=\"pick\" type=\"radio\" name=\"pick\" id=\"", id, "\"",
                      id == std::string_view("all") ? " checked" : "", ">");
  out += base::text(
      "<div class=\"picks\"><label for=\"all\">all</label><label for=\"best\">best"
      "</label><label for=\"worst\">worst</label><label for=\"any\">by chance</label>"
      "</div><div class=\"samples\">",
      cards, "</div></section>\n");
  std::string changed;
  for (const auto& answers : run.samples().changed_answers(most_changed))
    changed += difference(answers);
  if (changed.empty()) return out;
  return base::text(out,
                    "<section><h2>The same prompts, earlier and later</h2><p class=\"soft\">"
                    "First and last answer; <del>gone</del>, <ins>new</ins>.</p><div class="
                    "\"samples\">",
                    changed, "</div></section>\n");
}

std::string memory_part(const RunHistory& run) {
  constexpr std::array<std::pair<const char*, const char*>, 9> kinds{
      {{"weights", "Weights"},
       {"master", "Master weights"},
       {"moments", "Moments"},
       {"gradients", "Gradients"},
       {"gradient_slots", "Gradients on their way"},
       {"gradient_sums", "Sums of gradients"},
       {"average", "Average"},
       {"activations", "Activations"},
       {"kv_cache_peak", "KV cache"}}};
  constexpr std::string_view prefix = "memory.";
  std::map<std::string, std::array<double, kinds.size()>> models;
  std::string device;
  for (const auto& [metric, bytes] : run.last().values) {
    if (!metric.starts_with(prefix)) continue;
    const std::string name = metric.substr(prefix.size());
    if (name.starts_with("device_")) {
      const double planned = run.last().get(base::text(prefix, "planned_", name));
      device += base::text("<tr>", cell(html(name.substr(std::string_view("device_").size()))),
                           cell(with_unit(bytes, Unit::bytes), true),
                           cell(std::isnan(planned) ? "–" : with_unit(planned, Unit::bytes), true),
                           "</tr>");
    }
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      const std::string_view word = kinds[kind].first;
      if (name == word) models["generator"][kind] = bytes;
      if (name.ends_with(base::text("_", word)))
        models[name.substr(0, name.size() - word.size() - 1)][kind] = bytes;
    }
  }
  std::string head = "<th>Model</th>", rows;
  std::array<bool, kinds.size()> shown{};
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    shown[kind] =
        std::ranges::any_of(models, [&](const auto& row) { return row.second[kind] > 0; });
    if (shown[kind]) head += base::text("<th class=\"n\">", kinds[kind].second, "</th>");
  }
  for (const auto& [model, bytes] : models) {
    rows += base::text("<tr>", cell(html(model)));
    for (size_t kind = 0; kind < kinds.size(); ++kind)
      if (shown[kind])
        rows += cell(bytes[kind] > 0 ? with_unit(bytes[kind], Unit::bytes) : "–", true);
    rows += "</tr>";
  }
  if (rows.empty() && device.empty()) return "";
  return base::text(
      "<section><h2>Memory by kind</h2>", rows.empty() ? "" : table(head, rows),
      device.empty() ? ""
                     : table("<th>On the GPU</th><th class=\"n\">Measured</th><th class=\"n\">"
                             "Planned</th>",
                             device),
      "<p class=\"soft\">After the newest iteration, each number of the rank that has most of "
      "it.</p></section>\n");
}

std::string roles_part(const RunHistory& run) {
  if (run.roles().empty()) return "";
  std::string rows;
  for (const RoleTimes& role : run.roles()) {
    const auto share = [&](double seconds) {
      return cell(role.seconds > 0 ? with_unit(seconds / role.seconds, Unit::share) : "–", true);
    };
    rows += base::text("<tr>", cell(html(role.role)), cell(std::to_string(role.ranks), true),
                       cell(with_unit(role.seconds, Unit::seconds), true),
                       share(role.communication), share(role.wait), share(role.io),
                       cell(with_unit(role.host_peak, Unit::bytes), true),
                       role.device_peak > 0 ? cell(with_unit(role.device_peak, Unit::bytes), true)
                                            : cell("–", true),
                       "</tr>");
  }
  return base::text("<section><h2>Where the ranks' time went</h2>",
                    table("<th>Role</th><th class=\"n\">Ranks</th><th class=\"n\">Wall time</th>"
                          "<th class=\"n\">Communication</th><th class=\"n\">Waiting</th><th class="
                          "\"n\">Files</th><th class=\"n\">Host memory</th><th class=\"n\">GPU "
                          "memory</th>",
                          rows),
                    "<p class=\"soft\">Of the newest finished start, average of a rank. The table "
                    "by phase is at the end of log.txt.</p></section>\n");
}

std::string problems_part(const RunHistory& run) {
  if (run.problems().empty()) return "";
  std::string rows;
  for (auto problem = run.problems().rbegin(); problem != run.problems().rend(); ++problem)
    rows +=
        base::text("<tr>", cell(html(problem->time)), cell(problem->error ? "error" : "warning"),
                   cell(problem->times > 1 ? base::text(problem->times, " ×") : "", true),
                   cell(html(problem->text)), "</tr>");
  return base::text("<section><h2>Warnings</h2>",
                    table("<th>Last seen</th><th></th><th></th><th>What</th>", rows),
                    "</section>\n");
}

std::string starts_part(const RunHistory& run) {
  const auto& starts = run.record().starts;
  if (starts.empty()) return "";
  std::string rows;
  for (size_t i = 0; i < starts.size(); ++i) {
    const RunStart& start = starts[i];
    rows +=
        base::text("<tr>", cell(clock_text(start.time)),
                   cell(start.after > 0 ? base::text("after iteration ", start.after)
                                        : std::string("from the beginning")),
                   cell(std::to_string(start.ranks), true), cell(std::to_string(start.nodes), true),
                   cell(start.ended > 0 ? clock_text(start.ended) : "–"),
                   cell(ending(start, i + 1 == starts.size())), cell(html(start.version)), "</tr>");
  }
  return base::text("<section><h2>Starts</h2>",
                    table("<th>Started</th><th>Continued</th><th class=\"n\">Ranks</th><th class="
                          "\"n\">Nodes</th><th>Ended</th><th>How</th><th>Version</th>",
                          rows),
                    "</section>\n");
}

std::string deck_part(const RunHistory& run) {
  if (run.deck().empty()) return "";
  std::string rows;
  for (const auto& [key, value] : run.deck())
    rows += base::text("<tr><td><code>", html(key), "</code></td><td><code>", html(value),
                       "</code></td></tr>");
  return base::text("<section><h2>Deck</h2><details><summary>", run.deck().size(),
                    " keys that differ from the defaults</summary>",
                    table("<th>Key</th><th>Value</th>", rows), "</details></section>\n");
}

std::string command_of(const RunHistory& run) {
  const RunRecord& record = run.record();
  if (record.starts.empty() || record.command.empty()) return "";
  const RunStart& start = record.starts.back();
  const auto deck = std::filesystem::absolute(run.folder() / "deck.toml").lexically_normal();
  return base::text("cd ", quoted(start.folder), " && mpirun -n ", start.ranks, " trireme ",
                    record.command, " ", quoted(deck.string()));
}

std::string files_part(const RunHistory& run, const std::filesystem::path& file) {
  constexpr std::array<std::pair<const char*, const char*>, 11> known{
      {{"log.txt", "log"},
       {"metrics.jsonl", "all metrics, a line per iteration"},
       {"samples.jsonl", "samples"},
       {"trace.json", "what each rank did when: opens in ui.perfetto.dev"},
       {"summary.json", "end table as data"},
       {"deck.toml", "complete deck"},
       {"ckpt", "checkpoints"},
       {"hf", "trained model, Hugging Face layout"},
       {"tensorboard", "for tensorboard --logdir"},
       {"not_finite", "data of skipped optimizer steps"},
       {"hang", "where each rank was when the run hung"}}};
  const auto base_folder = std::filesystem::absolute(file).parent_path();
  std::string items;
  for (const auto& [name, what] : known) {
    std::error_code error;
    const auto path = run.folder() / name;
    if (!std::filesystem::exists(path, error)) continue;
    const auto target = std::filesystem::absolute(path).lexically_relative(base_folder);
    items += base::text("<li><a href=\"", link_target(target.string()), "\">", html(name),
                        "</a> – ", what, "</li>");
  }
  const std::string command = command_of(run);
  return base::text("<section><h2>Files</h2><ul>", items, "</ul>",
                    command.empty() ? ""
                                    : base::text("<p class=\"soft\">To start it again from its own "
                                                 "deck, or continue it:</p><pre>",
                                                 html(command), "</pre>"),
                    "</section>\n");
}

}  // namespace trireme::report
