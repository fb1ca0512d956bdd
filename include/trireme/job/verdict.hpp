// The exit code that the program means, for the script that started it. Ranks do not leave at the
// same moment, and a launcher that ends the others when the first one has left reports what it did
// to them (srun: 143), not why the job ended.
//
// The script names a file in TRIREME_VERDICT, a new one for each start; the program makes it with
// one line: "73 host n1 pid 4711". Who knows first writes: rank 0 with the code that all agreed on,
// before any rank leaves, or the rank that alone ends the job. Later verdicts of the same start are
// ignored. Without the variable nothing is written.
#pragma once

namespace trireme::job {

// Best effort: a file that cannot be made is no reason to end otherwise. The file is complete when
// it appears. Any thread, and signal handlers.
void record_verdict(int exit_code) noexcept;

}  // namespace trireme::job
