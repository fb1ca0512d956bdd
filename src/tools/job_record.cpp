#include "tools/job_record.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/learn/file_digest.hpp"
#include "trireme/text/json_text.hpp"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t longest_record = uint64_t{1} << 24;
constexpr const char* in_folder = ".trireme-done";
constexpr const char* output_digest = "output";  // beside the settings
const ToolJob dropped_lines{{"unfinished", "begun anew by the next run"}};

fs::path record_of(const fs::path& output) {
  std::error_code error;
  return fs::is_directory(output, error) ? output / in_folder : with_ending(output, ".done");
}

std::string setting(const text::Json& record, const std::string& name) {
  const auto found = record.is_object() ? record.find(name) : record.end();
  return found != record.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string digest_of_output(const fs::path& output) {
  if (!fs::is_directory(output)) return learn::digest_of_file(output);
  return base::text(learn::digest_of_model(output), " ", learn::digest_of_descriptions(output));
}

void write_record_of(const fs::path& record, const fs::path& written, ToolJob job) {
  job.emplace_back(output_digest, digest_of_output(written));
  write_record(record, job);
}

}  // namespace

std::string exact_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

std::string changes_of_job(const fs::path& record, const ToolJob& job) {
  const text::Json was = text::read_json_file(record.string(), longest_record);
  std::vector<std::string> changes;
  for (const auto& [name, value] : job) {
    const std::string before = setting(was, name);
    const auto shown = [](const std::string& one) { return one.empty() ? "(none)" : one; };
    if (before != value)
      changes.push_back(base::text(name, ": ", shown(before), " -> ", shown(value)));
  }
  return base::join(changes);
}

void write_record(const fs::path& record, const ToolJob& job) {
  data::JsonObject object;
  for (const auto& [name, value] : job) object.add(name, value);
  base::write_file_atomically(record, object.str() + "\n");
}

void require_record(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return;
  const auto is_text = [](const text::Json& value) { return value.is_string(); };
  bool is_record = false;
  try {
    const text::Json record = text::read_json_file(file.string(), longest_record);
    is_record = record.is_object() && !record.empty() && std::ranges::all_of(record, is_text);
  } catch (const UserError&) {}  // another file
  VALIDATE(is_record, ExitCode::usage, file.string(),
           " is there, and no tool of this program has written it (its name is that of a record of "
           "the output, which would replace it): name another output, rename the file, or give "
           "--force to replace it");
}

void record_dropped(const fs::path& job_file) { write_record(job_file, dropped_lines); }

bool is_record_of_dropped(const fs::path& job_file) {
  try {
    return changes_of_job(job_file, dropped_lines).empty();
  } catch (const UserError&) { return false; }
}

bool is_done(const fs::path& output, const ToolJob& job, Existing existing) {
  std::error_code error;
  if (existing == Existing::replaced || is_stream(output)) return false;
  const fs::path path = output_path(output);
  const fs::path record = record_of(path);
  const bool finished =
      fs::exists(path, error) && fs::exists(record, error) && !is_unfinished(path);
  if (!finished) return false;
  const std::string changes = changes_of_job(record, job);
  VALIDATE(changes.empty(), ExitCode::usage, "the output ", output.string(), " is of another job (",
           changes, "): name another one, or give --force to replace it");
  const text::Json was = text::read_json_file(record.string(), longest_record);
  VALIDATE(setting(was, output_digest) == digest_of_output(path), ExitCode::usage, "the output ",
           output.string(),
           " was changed since it was written: name another one, or give --force to replace it");
  log::info(base::text("already done: ", output.string(), " is the output of this job"));
  return true;
}

void record_file(const fs::path& output, const fs::path& written, const ToolJob& job) {
  write_record_of(with_ending(output, ".done"), written, job);
}

void record_folder(const fs::path& written, const ToolJob& job) {
  write_record_of(written / in_folder, written, job);
}

void remove_record(const fs::path& folder) {
  std::error_code ignored;
  fs::remove(folder / in_folder, ignored);
}

std::string setting_of_earlier_run(const fs::path& output, const std::string& name,
                                   Existing existing) {
  if (is_stream(output)) return "";
  for (const char* ending : {".job", ".done"}) {
    const fs::path record = with_ending(output_path(output), ending);
    if (!fs::exists(record)) continue;
    if (existing == Existing::replaced && ending == std::string_view(".done")) continue;
    try {
      return setting(text::read_json_file(record.string(), longest_record), name);
    } catch (const UserError&) { return ""; }  // damaged: what reads all of it says so
  }
  return "";
}

}  // namespace trireme::tools
