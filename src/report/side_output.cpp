#include "trireme/report/side_output.hpp"

#include <cstdint>
#include <filesystem>
#include <map>

#include "trireme/base/allocation.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"

namespace trireme::report {
namespace {

// Of the main thread, which writes all of these.
std::map<std::string, int64_t>& failures() {
  static std::map<std::string, int64_t> counts;
  return counts;
}

bool may_be_left_out(ExitCode code) {
  return code == ExitCode::io_error || code == ExitCode::permission ||
         code == ExitCode::input_missing || code == ExitCode::out_of_memory;
}

void warn(const std::string& name, const std::string& problem) {
  const int64_t count = ++failures()[name];
  if ((count & (count - 1)) != 0) return;
  log::warning(base::text(name, " could not be written (", problem, "): the run goes on without it",
                          count > 1 ? base::text(", as ", count, " times so far") : std::string{}));
}

}  // namespace

bool side_output(const std::string& name, const std::function<void()>& write) {
  try {
    write();
    return true;
  } catch (const UserError& error) {
    if (!may_be_left_out(error.code())) throw;
    warn(name, error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    warn(name, error.what());
  } catch (const std::exception& error) {
    if (!base::failed_allocation(error)) throw;
    warn(name, "out of memory");
  }
  return false;
}

}  // namespace trireme::report
