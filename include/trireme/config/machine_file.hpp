// A node as `trireme plan --machine FILE.toml` takes it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "trireme/config/options.hpp"

namespace trireme::config {

struct MachineFile {
  std::string name;   // empty: the file's
  Bytes gpu_memory;   // of one GPU; 0: CPUs only
  Bytes host_memory;  // of a node
  // Per GPU, one way; all of them or none.
  double flops = 0;         // a second, bf16, dense
  double memory_speed = 0;  // bytes/s, like all below
  double node_link = 0;
  double network = 0;
  double host_link = 0;
};

// Throws UserError: input_missing or permission for the file, configuration with all mistakes of
// its content.
MachineFile load_machine_file(const std::filesystem::path& path);
// The same from a text; `name` stands for the file in messages.
MachineFile parse_machine_file(std::string_view text, std::string_view name);

}  // namespace trireme::config
