#include "trireme/checkpoint/faults.hpp"

#include <string>
#include <utility>
#include <vector>

#include "trireme/base/fault_gates.hpp"
#include "trireme/base/fault_point.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/config/fault.hpp"

namespace trireme::checkpoint {

void install_faults(const config::FaultOptions& options, const std::string& run_folder, int rank) {
  base::set_gate_folder(run_folder);
  std::vector<base::InjectedFault> mine;
  for (const config::Fault& fault : config::parse_faults(options.at)) {
    if (fault.is_for(rank)) mine.push_back({fault.kind, fault.place, fault.pass, fault.value});
  }
  base::install_faults(std::move(mine));

  Faults files;
  files.crash_at = options.crash_at;
  const auto io = config::parse_fault_io(options.io_fail);
  if (io && (io->rank < 0 || io->rank == rank)) {
    files.operation = io->operation;
    files.call = io->call;
    files.error = io->error;
  }
  if (!files.crash_at.empty() || files.call > 0) set_faults(files);
}

}  // namespace trireme::checkpoint
