#include "driver/resume_point.hpp"

#include "driver/progress.hpp"
#include "trireme/base/error.hpp"
#include "trireme/checkpoint/reader.hpp"

namespace trireme::driver {

std::string name_of_checkpoint(const std::filesystem::path& checkpoint) {
  const auto name = std::filesystem::absolute(checkpoint).lexically_normal();
  return name.has_filename() ? name.string() : name.parent_path().string();
}

bool takes_named_checkpoint(const std::string& resume, const std::filesystem::path& checkpoints, const comm::CommView& world) {
  if (resume == "auto" || resume == "never") return false;
  std::string recorded;
  try {
    checkpoint::load_newest(world, checkpoints,
                            [&](checkpoint::Reader& reader) { recorded = progress_from_json(reader.state()).resumed_from; });
  } catch (const UserError& error) {
    if (error.code() != ExitCode::bad_data) throw;  // it cannot be read now: going back would be a guess
  }
  return recorded != name_of_checkpoint(resume);
}

}  // namespace trireme::driver
