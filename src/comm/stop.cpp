#include "trireme/comm/stop.hpp"

#include <algorithm>
#include <system_error>

#include "trireme/base/progress.hpp"

namespace trireme::comm {

job::StopReason agree_to_stop(const CommView& world, const RequestFiles& files,
                              job::StopReason wish) {
  wish = std::max(wish, job::pending_signal());
  if (world.rank() == 0) {
    const base::FileWork work{"listing", files.stop.parent_path()};
    std::error_code ignored;
    if (std::filesystem::exists(files.save, ignored))
      wish = std::max(wish, job::StopReason::save_and_go_on);
    if (std::filesystem::exists(files.stop, ignored))
      wish = std::max(wish, job::StopReason::stop_file);
  }
  return static_cast<job::StopReason>(world.max(static_cast<int32_t>(wish)));
}

}  // namespace trireme::comm
