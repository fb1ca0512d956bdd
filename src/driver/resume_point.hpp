// Which checkpoint a start goes on from: ckpt.resume may name one, which is obeyed once.
#pragma once

#include <filesystem>
#include <string>

#include "trireme/comm/comm.hpp"

namespace trireme::driver {

// The text by which a named checkpoint is known again, for Progress::resumed_from. Links stay links: `best` names another one tomorrow.
std::string name_of_checkpoint(const std::filesystem::path& checkpoint);

// Whether this start takes the checkpoint that ckpt.resume = `resume` names: true until what the run saved last in `checkpoints` goes back to a
// start that did; then, and for auto and never, false. Collective. Throws io_error when the newest checkpoint cannot be read now.
bool takes_named_checkpoint(const std::string& resume, const std::filesystem::path& checkpoints, const comm::CommView& world);

}  // namespace trireme::driver
