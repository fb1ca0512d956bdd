#include "driver/resume_point.hpp"

#include <cstdio>

#include "trireme/base/error.hpp"
#include "trireme/checkpoint/reader.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/driver/run_state.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::driver {
namespace {

std::optional<config::DType> type_of(const RunState& state) {
  if (state.compute_type == config::to_string(config::DType::bf16)) return config::DType::bf16;
  if (state.compute_type == config::to_string(config::DType::f32)) return config::DType::f32;
  try {  // checkpoints from before the type was stored have a deck that names it
    const auto options = config::parse_deck(state.deck, "the deck of the checkpoint");
    if (options.model.dtype != config::ComputeType::automatic) return options.model.compute();
  } catch (const UserError&) {  // a deck of another version
  }
  return std::nullopt;
}

}  // namespace

std::filesystem::path normal_path(const std::filesystem::path& checkpoint) {
  const auto path = std::filesystem::absolute(checkpoint).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

std::string name_of_checkpoint(const std::filesystem::path& checkpoint) {
  const std::string path = normal_path(checkpoint).string();
  if (text::first_invalid_utf8(path) == std::string::npos) return path;
  std::string name;  // file systems know bytes, the state of a checkpoint knows texts
  for (const char c : path) {
    char hexadecimal[4];
    std::snprintf(hexadecimal, sizeof hexadecimal, "%%%02X",
                  static_cast<unsigned>(static_cast<unsigned char>(c)));
    name += static_cast<unsigned char>(c) < 0x80 ? std::string(1, c) : std::string(hexadecimal);
  }
  return name;
}

bool takes_named_checkpoint(const std::string& resume, const std::filesystem::path& checkpoints,
                            const comm::CommView& world) {
  if (resume == "auto" || resume == "never") return false;
  std::string recorded;
  try {
    checkpoint::load_newest(world, checkpoints, [&](checkpoint::Reader& reader) {
      recorded = run_state_from_json(reader.state()).resumed_from;
    });
  } catch (const UserError& error) {
    if (error.code() != ExitCode::bad_data)
      throw;  // it cannot be read now: going back would be a guess
  }
  return world.broadcast_value(world.rank() == 0 && recorded != name_of_checkpoint(resume),
                               0);  // a relative path: ranks may have started in other folders
}

StoredStart stored_start(const std::string& resume, const std::filesystem::path& checkpoints,
                         const comm::CommView& world) {
  StoredStart stored;
  if (resume == "never") return stored;
  const auto read = [&](checkpoint::Reader& reader) {
    const RunState state = run_state_from_json(reader.state());
    stored = {type_of(state), state.date};
  };
  if (takes_named_checkpoint(resume, checkpoints, world)) {
    checkpoint::Reader reader(world, resume);
    read(reader);
  } else {
    checkpoint::load_newest(world, checkpoints, read);
  }
  return stored;
}

}  // namespace trireme::driver
