// Gates between ranks, for the faults `open` and `gate` (fault_point.hpp): one rank waits at a
// named place until another has come to one of its own. A gate is a file, so that ranks on other
// nodes of a shared file system see it too.
#pragma once

#include <filesystem>

namespace trireme::base {

// Where this process keeps its gates; they stay open for the next start in the same folder.
void set_gate_folder(std::filesystem::path folder);

// Opens gate `number` for every process of the folder. A file that cannot be written is a UserError
// (permission, io_error).
void open_gate(int number);
// Returns when gate `number` is open: sleeps until then, and neither serves messages nor gives up.
// The deadline is the job's (run.hang_timeout).
void wait_for_gate(int number);

}  // namespace trireme::base
