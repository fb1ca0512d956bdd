#include "trireme/report/exports.hpp"

#include <system_error>

#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/text.hpp"

namespace trireme::report {

std::string export_name(const std::string& checkpoint) { return "hf-" + checkpoint; }

// Out of sight first: half an export never has a good name.
void remove_export(const std::filesystem::path& run, const std::string& checkpoint) {
  for (const char* suffix : {"", ema_suffix, critic_suffix}) {
    const std::string name = export_name(checkpoint) + suffix;
    const std::filesystem::path doomed = run / ("." + name + ".old.tmp");
    const base::FileWork work{"removal", run / name};
    std::error_code error;
    std::filesystem::remove_all(doomed, error);  // of a removal that was killed
    if (!std::filesystem::exists(run / name, error)) continue;
    std::filesystem::rename(run / name, doomed, error);
    if (!error) std::filesystem::remove_all(doomed, error);
    if (error)
      log::warning(base::text("the export ", (run / name).string(), " could not be removed (",
                              error.message(), ")"));
  }
}

}  // namespace trireme::report
