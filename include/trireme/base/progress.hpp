// Signs of life of loops that last, and of waits for a file system: a watchdog takes a process
// whose count stands still for one that hangs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme::base {

// One more piece of work is done: a row read, a tensor loaded, a transfer ended, a look at
// something that has a deadline of its own. Costs one atomic addition; any thread.
void tick() noexcept;
uint64_t ticks_so_far() noexcept;

// Answers and tokens that the generators of this process have written since it started, for reports
// of a rollout's progress. Any thread.
struct Written {
  int64_t answers = 0;
  int64_t tokens = 0;
};
void add_written(const Written& more) noexcept;
Written written_so_far() noexcept;

// The calling thread waits for a file system in this scope: its silence has the deadline of files,
// and a watchdog names the file. The outermost of a thread counts. Any thread.
class FileWork {
 public:
  FileWork(const char* deed, const std::filesystem::path& path) noexcept;
  ~FileWork();
  FileWork(const FileWork&) = delete;
  FileWork& operator=(const FileWork&) = delete;
};

// "write of /run/metrics.jsonl": file work of the thread with this kernel id; empty: none. Any
// thread.
std::string file_work_of(int thread);

}  // namespace trireme::base
