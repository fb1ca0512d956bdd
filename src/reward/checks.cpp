#include "trireme/reward/checks.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <memory>
#include <utility>

#include "reward/file_rows.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/config/reward_sources.hpp"
#include "trireme/reward/reward.hpp"

namespace trireme::reward {
namespace {

constexpr size_t most_shown = 10;

// Rules by their place in the deck; null: another kind.
std::vector<std::unique_ptr<Source>> make_rules(const config::Options& options) {
  std::vector<std::unique_ptr<Source>> rules(options.reward.source.size());
  std::vector<std::string> mistakes;
  for (size_t i = 0; i < rules.size(); ++i) {
    if (options.reward.source[i].kind != config::RewardKind::rule) continue;
    try {
      rules[i] = make_rule_of(options, i);
    } catch (const UserError& error) {
      VALIDATE(error.code() == ExitCode::configuration, error.code(), error.what());
      mistakes.emplace_back(error.what());
    }
  }
  VALIDATE(mistakes.empty(), ExitCode::configuration, base::join(mistakes, "\n  "));
  return rules;
}

// Records that rules cannot compare with.
class Mistakes {
 public:
  void add(const Source& rule, const FileRows& file) {
    int64_t wrong = 0;
    bool alike = true;
    std::vector<std::pair<int64_t, std::string>> first;
    for (int64_t row = file.first; row < file.end; ++row) {
      base::tick();
      Request request;
      add_label(*file.set, row, request);
      std::string problem = rule.label_problem(request);
      if (problem.empty()) continue;
      ++wrong;
      alike = alike && (first.empty() || problem == first.front().second);
      if (first.size() < most_shown) first.emplace_back(row, std::move(problem));
    }
    if (wrong == 0) return;
    all_ += wrong;
    const std::string whose = base::text(" (reward source ", rule.name(), ")");
    if (wrong > 1 && alike && wrong == file.end - file.first) {
      show(base::text(file.file, ", all ", wrong, " records: ", first.front().second, whose),
           wrong);
      return;
    }
    for (const auto& [row, problem] : first)
      show(base::text(file.set->where(row), ": ", problem, whose), 1);
  }

  void check(const config::Options& options) const {
    if (all_ == 0) return;
    const std::string advice =
        base::text("correct the data, or name the column of the labels (data.label_key, now \"",
                   options.data.label_key, "\", or label_key of the source)");
    if (lines_.size() == 1)
      throw UserError(ExitCode::bad_data, base::text(lines_.front(), ": ", advice));
    throw UserError(
        ExitCode::bad_data,
        base::text(all_, " records have no usable label: ", advice, "\n  ",
                   base::join(lines_, "\n  "),
                   all_ > shown_ ? base::text("\n  and ", all_ - shown_, " more") : ""));
  }

 private:
  void show(std::string line, int64_t records) {
    if (lines_.size() == most_shown) return;
    lines_.push_back(std::move(line));
    shown_ += records;
  }

  std::vector<std::string> lines_;
  int64_t all_ = 0, shown_ = 0;
};

// "prompt, answer": of a record, beside its prompt and label.
std::string columns_of(const data::PromptRecord& record) {
  const auto extra = nlohmann::json::parse(record.extra, nullptr, false);
  std::vector<std::string> names;
  for (const auto& entry : extra.items()) names.push_back(entry.key());
  return base::join(names);
}

// Plugins get "" for a missing label, and every answer contains "".
void warn_of_missing(const config::Options& options, const std::string& plugin,
                     const std::vector<FileRows>& files, std::vector<std::string>& warnings) {
  int64_t records = 0, missing = 0;
  const FileRows* first_file = nullptr;
  int64_t first_row = 0;
  for (const FileRows& file : files) {
    records += file.end - file.first;
    for (int64_t row = file.first; row < file.end; ++row) {
      if (!(*file.set)[row].label.empty()) continue;
      if (missing++ > 0) continue;
      first_file = &file;
      first_row = row;
    }
  }
  if (missing == 0) return;
  const std::string key = base::text("data.label_key = \"", options.data.label_key, "\"");
  const std::string gets = base::text("reward plugin ", plugin, " gets \"\" for it");
  if (missing < records) {
    warnings.push_back(base::text(missing, " of ", records, " records have no label (",
                                  first_file->set->where(first_row), " is the first; ", key,
                                  "): ", gets));
    return;
  }
  const std::string columns = columns_of((*first_file->set)[first_row]);
  warnings.push_back(
      base::text("no record has a label (", key, "; ", first_file->set->where(first_row),
                 columns.empty() ? " has no other column" : " has the columns " + columns,
                 "): ", gets, ", which is part of every answer; check the key"));
}

}  // namespace

std::unique_ptr<Source> make_rule_of(const config::Options& options, size_t index) {
  config::RewardSource source = options.reward.source[index];
  if (source.label_key == options.data.label_key) source.label_key.clear();  // it is the label
  return make_rule(source, config::source_name(source, index));
}

void check_rules(const config::Options& options) { make_rules(options); }

std::vector<std::string> check_labels(const config::Options& options, Sets sets) {
  const auto rules = make_rules(options);
  const std::vector<FileRows> files = files_of(sets);
  Mistakes mistakes;
  std::vector<std::string> warnings;
  for (size_t i = 0; i < rules.size(); ++i) {
    const config::RewardSource& source = options.reward.source[i];
    for (const FileRows& file : files) {
      if (rules[i]) mistakes.add(*rules[i], file);
    }
    if (source.kind == config::RewardKind::plugin)
      warn_of_missing(options, config::source_name(source, i), files, warnings);
  }
  mistakes.check(options);
  return warnings;
}

}  // namespace trireme::reward
