// Which checkpoint a start goes on from: ckpt.resume may name one, which is obeyed once.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "trireme/comm/comm.hpp"
#include "trireme/config/options.hpp"

namespace trireme::driver {

// Absolute, without a slash at its end. Links stay links: `best` names another checkpoint tomorrow.
std::filesystem::path normal_path(const std::filesystem::path& checkpoint);

// The text by which a named checkpoint is known again, for RunState::resumed_from: its normal path,
// where bytes that are no UTF-8 are spelled out.
std::string name_of_checkpoint(const std::filesystem::path& checkpoint);

// Whether this start takes the checkpoint that ckpt.resume = `resume` names: true until what the
// run saved last in `checkpoints` goes back to a start that did; then, and for auto and never,
// false. Collective. Throws io_error when the newest checkpoint cannot be read now.
bool takes_named_checkpoint(const std::string& resume, const std::filesystem::path& checkpoints,
                            const comm::CommView& world);

// Decisions of the first start where the deck leaves them open; restarts keep them.
struct StoredStart {
  std::optional<config::DType> compute_type;  // nullopt: there is no checkpoint, or it does not say
  std::string date;  // of chat templates; "": there is no checkpoint, or it does not say
};
// That of the run whose checkpoint the deck's ckpt.resume (`resume`) leads to. Collective over
// world.
StoredStart stored_start(const std::string& resume, const std::filesystem::path& checkpoints,
                         const comm::CommView& world);

}  // namespace trireme::driver
