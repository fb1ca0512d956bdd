#include "trireme/checkpoint/position.hpp"

#include <algorithm>
#include <functional>

#include "manifest.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/checkpoint/reader.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint {

std::vector<int64_t> list_steps(const std::filesystem::path& folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const int64_t step = step_of(entry->path().filename().string());
    std::error_code gone;  // removed since it was listed
    if (step >= 0 && entry->is_directory(gone)) steps.push_back(step);
  }
  const bool absent = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !absent) base::throw_errno(error.value(), "list", folder);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::vector<Position> list_committed(const std::filesystem::path& folder, std::vector<std::string>* not_whole) {
  const base::FileWork work{"listing", folder};
  std::vector<Position> all;
  for (const int64_t step : list_steps(folder)) {
    try {
      all.push_back({read_manifest(folder / folder_name(step)).fence, step});
    } catch (const UserError& error) {
      if (error.code() != ExitCode::bad_data && error.code() != ExitCode::input_missing) throw;
      if (not_whole != nullptr) not_whole->emplace_back(error.what());
    }
  }
  std::sort(all.begin(), all.end(), std::greater<>());
  return all;
}

}  // namespace trireme::checkpoint
