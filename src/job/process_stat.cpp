#include "trireme/job/process_stat.hpp"

#include <sstream>
#include <string>

#include "trireme/base/files.hpp"

namespace trireme::job {

std::optional<int64_t> stat_field(const std::filesystem::path& file, int number) {
  const std::string text = base::read_if_there(file);
  const size_t name_end = text.rfind(')');  // of field 2, which may hold blanks and parentheses
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < number; ++field) fields >> skipped;
  int64_t value = 0;
  return fields >> value ? std::optional(value) : std::nullopt;
}

}  // namespace trireme::job
