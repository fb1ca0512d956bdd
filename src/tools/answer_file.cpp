#include "tools/answer_file.hpp"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/job_record.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

// Whether the record is there, can be read and is this job's.
bool is_of_job(const fs::path& job_file, const ToolJob& job) {
  try {
    return changes_of_job(job_file, job).empty();
  } catch (const UserError&) { return false; }
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

AnswerFile::AnswerFile(const fs::path& path, const ToolJob& job, AnswerSet& done, Existing existing)
    : output_(path, existing, OutputFile::Leftover::kept), job_(job) {
  if (output_.partial().empty()) return;
  job_file_ = output_.partial();
  job_file_.replace_extension(".job");  // instead of ".partial"
  const uint64_t bytes = fs::file_size(output_.partial());
  const bool forced = existing == Existing::replaced;
  if (bytes == 0 || is_record_of_dropped(job_file_) || (forced && !is_of_job(job_file_, job))) {
    output_.cut(0);
    write_record(job_file_, job);
    return;
  }
  VALIDATE(fs::exists(job_file_), ExitCode::configuration, output_.partial().string(),
           " is there without ", job_file_.string(),
           ", so that nobody knows what it answers: remove it, or give --force");
  const std::string changes = changes_of_job(job_file_, job);
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
  output_.finish(job_);
  std::error_code ignored;  // what stays of it says the same as the record
  if (!job_file_.empty()) fs::remove(job_file_, ignored);
}

}  // namespace trireme::tools
