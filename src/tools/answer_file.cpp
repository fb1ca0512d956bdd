#include "tools/answer_file.hpp"

#include <fstream>
#include <nlohmann/json.hpp>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/text/json_text.hpp"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t longest_job = uint64_t{1} << 24;

fs::path with(fs::path path, const char* ending) {
  path += ending;
  return path;
}

// Settings that differ, for the message; "": none.
std::string difference(const fs::path& job_file, const AnswerJob& job) {
  const text::Json was = text::read_json_file(job_file.string(), longest_job);
  std::vector<std::string> changes;
  for (const auto& [name, value] : job) {
    const auto found = was.is_object() ? was.find(name) : was.end();
    const std::string before =
        found != was.end() && found->is_string() ? found->get<std::string>() : "(none)";
    if (before != value) changes.push_back(base::text(name, ": ", before, " -> ", value));
  }
  return base::join(changes);
}

// Whether the record is there, can be read and is this job's.
bool is_of_job(const fs::path& job_file, const AnswerJob& job) {
  try {
    return difference(job_file, job).empty();
  } catch (const UserError&) { return false; }
}

void write_job(const fs::path& job_file, const AnswerJob& job) {
  data::JsonObject object;
  for (const auto& [name, value] : job) object.add(name, value);
  base::write_file_atomically(job_file, object.str() + "\n");
}

// Adds the answer of a line; false when the line is damaged.
bool take(const std::string& line, AnswerSet& done) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;
  const auto index = json.find("index"), sample = json.find("sample");
  if (index == json.end() || sample == json.end() || !index->is_number_integer() ||
      !sample->is_number_integer())
    return false;
  return done.add(index->get<int64_t>(), sample->get<int64_t>());
}

// Bytes of the lines at the start of the file that are whole.
uint64_t take_lines(const fs::path& file, AnswerSet& done) {
  std::ifstream in(file, std::ios::binary);
  VALIDATE(in.is_open(), ExitCode::io_error, "cannot read ", file.string());
  uint64_t whole = 0;
  for (std::string line; std::getline(in, line) && !in.eof() && take(line, done);) {
    whole += line.size() + 1;
    base::tick();  // of a large file
  }
  VALIDATE(!in.bad(), ExitCode::io_error, "cannot read ", file.string());
  return whole;
}

}  // namespace

bool AnswerSet::has(int64_t prompt, int64_t sample) const {
  const int64_t at = prompt * samples_ + sample;
  return (bits_[static_cast<size_t>(at / 8)] >> (at % 8) & 1) != 0;
}

bool AnswerSet::add(int64_t prompt, int64_t sample) {
  if (prompt < 0 || prompt >= prompts_ || sample < 0 || sample >= samples_ || has(prompt, sample))
    return false;
  const int64_t at = prompt * samples_ + sample;
  bits_[static_cast<size_t>(at / 8)] =
      static_cast<uint8_t>(bits_[static_cast<size_t>(at / 8)] | 1 << (at % 8));
  ++size_;
  return true;
}

bool AnswerSet::has_all(int64_t prompt) const {
  for (int64_t sample = 0; sample < samples_; ++sample) {
    if (!has(prompt, sample)) return false;
  }
  return true;
}

std::string setting_of_earlier_run(const fs::path& output, const std::string& name,
                                   Existing existing) {
  for (const char* ending : {".job", ".done"}) {
    const fs::path record = with(output_path(output), ending);
    if (!fs::exists(record)) continue;
    if (existing == Existing::replaced && ending == std::string_view(".done")) continue;
    const text::Json job = text::read_json_file(record.string(), longest_job);
    const auto found = job.is_object() ? job.find(name) : job.end();
    return found != job.end() && found->is_string() ? found->get<std::string>() : "";
  }
  return "";
}

bool is_answered(const fs::path& output, const AnswerJob& job, AnswerSet none, Existing existing) {
  std::error_code error;
  if (output == "-" || existing == Existing::replaced) return false;
  const fs::path path = output_path(output);
  if (!fs::is_regular_file(path, error)) return false;
  const fs::path record = with(path, ".done");
  if (!fs::exists(with(path, ".partial"), error) && fs::exists(with(path, ".job"), error))
    fs::rename(with(path, ".job"), record, error);  // ended between its last two steps
  VALIDATE(fs::exists(record, error), ExitCode::usage, "the output ", path.string(),
           " is there already, and no ", record.string(),
           " says what it answers: name another one, or give --force to replace it");
  const std::string changes = difference(record, job);
  VALIDATE(changes.empty(), ExitCode::usage, "the output ", path.string(),
           " has the answers of another job (", changes,
           "): name another one, or give --force to replace it");
  const bool whole = take_lines(path, none) == fs::file_size(path);
  VALIDATE(whole && none.size() == none.wanted(), ExitCode::usage, "the output ", path.string(),
           " had all answers and has ", none.size(), " of ", none.wanted(),
           " now (it was changed since): name another one, or give --force to replace it");
  return true;
}

AnswerFile::AnswerFile(const fs::path& path, const AnswerJob& job, AnswerSet& done,
                       Existing existing)
    : output_(path, existing, OutputFile::Leftover::kept) {
  if (output_.partial().empty()) return;
  final_ = output_.partial();
  final_.replace_extension();  // without ".partial"
  job_file_ = with(final_, ".job");
  const uint64_t bytes = fs::file_size(output_.partial());
  const bool forced = existing == Existing::replaced;
  if (bytes == 0 || (forced && !is_of_job(job_file_, job))) {
    output_.cut(0);
    write_job(job_file_, job);
    return;
  }
  VALIDATE(fs::exists(job_file_), ExitCode::configuration, output_.partial().string(),
           " is there without ", job_file_.string(),
           ", so that nobody knows what it answers: remove it, or give --force");
  const std::string changes = difference(job_file_, job);
  VALIDATE(changes.empty(), ExitCode::configuration, output_.partial().string(),
           " has answers of another job (", changes,
           "): give the same options and prompts to go on with it, --force or remove it to begin "
           "anew, or name another output");
  const uint64_t whole = take_lines(output_.partial(), done);
  output_.cut(whole);
  log::info(base::text("goes on behind ", done.size(), " of ", done.wanted(), " answers in ",
                       output_.partial().string(),
                       whole < bytes ? base::text(" (", bytes - whole,
                                                  " bytes behind the last whole line are dropped)")
                                     : ""));
}

void AnswerFile::finish() {
  output_.finish();
  if (!job_file_.empty()) fs::rename(job_file_, with(final_, ".done"));
}

}  // namespace trireme::tools
