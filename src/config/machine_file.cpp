#include "trireme/config/machine_file.hpp"

#include <array>
#include <vector>

#include "config/key.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {
namespace {

constexpr uint64_t max_machine_file_bytes = uint64_t{1} << 20;

struct Speed {
  const char* name;
  double MachineFile::*value;
};
constexpr std::array speeds{
    Speed{"flops", &MachineFile::flops}, Speed{"memory_speed", &MachineFile::memory_speed},
    Speed{"node_link", &MachineFile::node_link}, Speed{"network", &MachineFile::network},
    Speed{"host_link", &MachineFile::host_link}};

const KeyList<MachineFile>& machine_keys() {
  static const KeyList<MachineFile> all = [] {
    KeyList<MachineFile> keys;
    keys.add(KEY(name), "In what is printed.").never_empty();
    keys.add(KEY(gpu_memory), "Of one GPU, as LibTorch reports it.").above(0);
    keys.add(KEY(host_memory), "Of a node.").above(0);
    keys.add(KEY(flops), "A second, bf16, dense.").above(0);
    keys.add(KEY(memory_speed), "Bytes a second of a GPU's own memory.").above(0);
    keys.add(KEY(node_link), "Bytes a second between the GPUs of a node.").above(0);
    keys.add(KEY(network), "Bytes a second of a GPU's share of the node's network.").above(0);
    keys.add(KEY(host_link), "Bytes a second between a GPU and host memory.").above(0);
    return keys;
  }();
  return all;
}

// Rules over several keys.
void check(const MachineFile& machine, std::string_view name, std::vector<std::string>& mistakes) {
  if (machine.host_memory.count == 0)
    mistakes.push_back(base::text(name, ": host_memory is missing (a node's memory, \"1 TiB\")"));
  std::vector<std::string> missing;
  for (const Speed& speed : speeds) {
    if (machine.*speed.value == 0) missing.emplace_back(speed.name);
  }
  if (missing.size() == speeds.size()) return;
  if (machine.gpu_memory.count == 0)
    mistakes.push_back(base::text(
        name, ": speeds are those of GPUs, but gpu_memory is missing (of one GPU, \"79 GiB\")"));
  if (!missing.empty())
    mistakes.push_back(
        base::text(name, ": ", base::join(missing),
                   " missing: times need all speeds; without any, memory alone is planned"));
}

}  // namespace

MachineFile parse_machine_file(std::string_view text, std::string_view name) {
  std::vector<std::string> mistakes, names;
  for (const auto& key : machine_keys()) names.push_back(key.name());
  MachineFile out;
  for (const Entry& entry : read_toml(text, name, mistakes)) {
    const auto* key = machine_keys().find(entry.key);
    const std::string near = key ? "" : base::nearest(entry.key, names);
    const std::string problem =
        key            ? key->assign(out, entry.value)
        : near.empty() ? base::text("is not a key of a machine (known: ", base::join(names), ")")
                       : base::text("is not a key of a machine (nearest: ", near, ")");
    if (!problem.empty())
      mistakes.push_back(base::text(name, ":", entry.line, ": ", entry.key, " ", problem));
  }
  if (mistakes.empty()) check(out, name, mistakes);
  VALIDATE(mistakes.empty(), ExitCode::configuration, base::join(mistakes, "\n  "));
  return out;
}

MachineFile load_machine_file(const std::filesystem::path& path) {
  MachineFile out =
      parse_machine_file(base::read_file(path, max_machine_file_bytes), path.string());
  if (out.name.empty()) out.name = path.stem().string();
  return out;
}

}  // namespace trireme::config
