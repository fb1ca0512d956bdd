// The output of a tool, a file or a model folder. It is written under another name and renamed when
// complete, so a file of the final name is complete; a record says what it was made from
// (job_record.hpp). An existing output is replaced only with --force, and a tool's own input never.
// One process at a time writes an output: a second one throws UserError(locked), on file systems
// that have locks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/base/files.hpp"

namespace trireme::tools {

enum class Existing : uint8_t { refused, replaced };  // without and with --force
inline Existing existing(bool force) { return force ? Existing::replaced : Existing::refused; }

// Files and folders that the tool reads; empty paths do not count.
using InputPaths = std::vector<std::filesystem::path>;

// Settings that decide about an output: name and value of each setting, in one order.
using ToolJob = std::vector<std::pair<std::string, std::string>>;

// "-", what the shell has opened (/dev/stdout, /dev/fd/N), a pipe or a device: written to as it is.
bool is_stream(const std::filesystem::path& path);
// A folder that is marked as being written.
bool is_unfinished(const std::filesystem::path& folder);

std::filesystem::path with_ending(std::filesystem::path path, const char* ending);
// Where an output comes to lie, through links; it need not be there.
std::filesystem::path output_path(const std::filesystem::path& path);

// Throws UserError(usage) where writing `output` would write over one of the inputs (a file, a file
// in a folder, also through links), or, unless `existing` says so, over anything else. "-", pipes
// and devices are written to and never there already.
void check_output_file(const std::filesystem::path& output, const InputPaths& inputs,
                       Existing existing);
// The same for a folder, which may be there when it is empty, or marked as left unfinished.
void check_output_folder(const std::filesystem::path& output, const InputPaths& inputs,
                         Existing existing);

// Lines are flushed as they come. "-", pipes and devices take them as they are.
class OutputFile {
 public:
  // Use of the lines of an earlier, unfinished run.
  enum class Leftover : uint8_t { dropped, kept };
  // check_output_file() comes before. Throws UserError: locked, also when another process has
  // finished the output meanwhile; usage where files beside it (.partial, .job, .done) are not what
  // a run of this tool has left, and `existing` does not say that they are replaced.
  OutputFile(std::filesystem::path path, Existing existing, Leftover leftover = Leftover::dropped);
  // Of an output that was not finished nothing stays, unless `leftover` says so.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;

  void write(std::string_view lines);
  // Syncs, records the job and gives the file its final name.
  void finish(const ToolJob& job);

  // The file until then; empty: a stream.
  const std::filesystem::path& partial() const { return partial_; }
  // Keeps its first `bytes`; lines come behind them.
  void cut(uint64_t bytes);

 private:
  void take_partial(Existing existing);
  void drop_leftover(Existing existing);

  std::filesystem::path path_;
  std::filesystem::path partial_;
  std::filesystem::path job_file_;  // says that the lines are dropped; empty: they are kept
  Leftover leftover_;
  base::FileDescriptor file_;
};

// All of an output that has no record. A stream takes it as it is.
void write_output(const std::filesystem::path& output, std::string_view content);

// The folder of a model. A new one is made as OUTPUT.partial. In one that is there, files appear by
// rename, weights last (model::ModelExport): an empty one, marked until it is complete, or with
// Existing::replaced one that has files, of which those that are not the model's stay.
class OutputFolder {
 public:
  OutputFolder(const std::filesystem::path& path, const InputPaths& inputs, Existing existing);
  // Of a new model that was not finished nothing stays.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;

  // Where to write until finish().
  const std::filesystem::path& path() const { return writing_; }
  void finish(const ToolJob& job);

 private:
  std::filesystem::path final_, writing_;
  base::FileDescriptor lock_;
  bool unfinished_ = false;  // a new model
};

}  // namespace trireme::tools
