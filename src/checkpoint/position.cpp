#include "trireme/checkpoint/position.hpp"

#include <algorithm>
#include <functional>

#include "manifest.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/checkpoint/reader.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint {
namespace {

bool is_absent(const std::error_code& error) {
  return error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
}

}  // namespace

std::vector<int64_t> list_steps(const std::filesystem::path& folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const int64_t step = step_of(entry->path().filename().string());
    std::error_code failed;  // removed since it was listed, or a link to nowhere
    if (step >= 0 && entry->is_directory(failed)) steps.push_back(step);
    if (step >= 0 && failed && !is_absent(failed))
      base::throw_errno(failed.value(), "look at", entry->path());
  }
  if (error && !is_absent(error)) base::throw_errno(error.value(), "list", folder);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::vector<Position> list_committed(const std::filesystem::path& folder,
                                     std::vector<std::string>* not_whole) {
  const base::FileWork work{"listing", folder};
  std::vector<Position> all;
  for (const int64_t step : list_steps(folder)) {
    try {
      const Manifest manifest = read_manifest(folder / folder_name(step));
      require_step(manifest, folder / folder_name(step), step);
      all.push_back({manifest.fence, step});
    } catch (const UserError& error) {
      if (error.code() != ExitCode::bad_data && error.code() != ExitCode::input_missing) throw;
      if (not_whole != nullptr) not_whole->emplace_back(error.what());
    }
  }
  std::sort(all.begin(), all.end(), std::greater<>());
  return all;
}

void link_best(const std::filesystem::path& folder, int64_t step) {
  const std::string target = folder_name(step);
  const auto link = folder / "best";
  const base::FileWork work{"link", link};
  std::error_code error;
  if (step < 0 || !std::filesystem::exists(folder / target, error)) return;
  if (std::filesystem::read_symlink(link, error) == target) return;
  const auto fresh =
      folder / ".best.tmp";  // renamed over the old link: there is a best one at any time
  std::filesystem::remove(fresh, error);
  std::filesystem::create_symlink(target, fresh, error);
  if (!error) std::filesystem::rename(fresh, link, error);
  if (error)
    log::warning(base::text("cannot link ", link.string(), " to ", target, " (", error.message(),
                            "): the checkpoint itself is there"));
}

}  // namespace trireme::checkpoint
