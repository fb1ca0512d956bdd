// Record of what a tool's output was made from, so that the same command, started again by a
// scheduler that requeues its job, finds that nothing is left to do.
//
// Beside a finished file OUTPUT is its record OUTPUT.done; in a finished model folder it is
// .trireme-done. It has the settings of the job and a digest of the output.
#pragma once

#include <filesystem>
#include <string>

#include "tools/output.hpp"

namespace trireme::tools {

// A number with all digits, so that equal texts are equal numbers.
std::string exact_text(double value);

// Settings that are otherwise in a record, for messages; "": none. Throws UserError(bad_data) for a
// record that cannot be read.
std::string changes_of_job(const std::filesystem::path& record, const ToolJob& job);
void write_record(const std::filesystem::path& record, const ToolJob& job);

// Throws UserError(usage) where a file of a record's name is there that is not a record.
void require_record(const std::filesystem::path& file);
// The record of a file whose lines no later run continues.
void record_dropped(const std::filesystem::path& job_file);
bool is_record_of_dropped(const std::filesystem::path& job_file);

// Whether the output is there, finished, and of this job: then the log says so. False also where
// `existing` says that it is replaced, for streams, and where no record says what is there, which
// is for check_output_file() and check_output_folder(). Throws UserError(usage) for an output of
// another job, or one that was changed since.
bool is_done(const std::filesystem::path& output, const ToolJob& job, Existing existing);

// The record of an output that is going to have its final name; `written` is its content, which
// still has another one.
void record_file(const std::filesystem::path& output, const std::filesystem::path& written,
                 const ToolJob& job);
void record_folder(const std::filesystem::path& written, const ToolJob& job);
// Of a folder in which a model is going to be replaced.
void remove_record(const std::filesystem::path& folder);

// The value of a setting in what an earlier run of the output was, unfinished (OUTPUT.job) or done;
// "": there is none. A finished one that is going to be replaced does not count.
std::string setting_of_earlier_run(const std::filesystem::path& output, const std::string& name,
                                   Existing existing);

}  // namespace trireme::tools
