// Files that a run can do without: the trace, the summary, samples, metrics, exports. A checkpoint
// is not one of them.
#pragma once

#include <functional>
#include <string>

namespace trireme::report {

// Calls `write`. An error of files or memory becomes a warning that names the output, what went
// wrong and how often it has by now (the first time, then at 2, 4, 8, ... failures), and the run
// goes on. Returns whether it was written. Every other error is thrown. Local.
bool side_output(const std::string& name, const std::function<void()>& write);

}  // namespace trireme::report
