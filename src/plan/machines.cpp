// Machines by name, as their makers describe them, and those of a file.
#include <algorithm>
#include <array>

#include "trireme/plan/job.hpp"

namespace trireme::plan {
namespace {

constexpr double gib = 1024.0 * 1024.0 * 1024.0;

// Of the last figure: PCI Express 5.0 and 4.0 with 16 lanes; Grace Hopper's own link.
const std::array<Machine, 5>& machines() {
  constexpr auto bytes = [](double count) { return static_cast<int64_t>(count * gib); };
  static const std::array<Machine, 5> all{
      Machine{"h100", bytes(79.1), bytes(1024), 989e12, 3.35e12, 450e9, 50e9, 64e9},
      Machine{"h200", bytes(139.8), bytes(1536), 989e12, 4.8e12, 450e9, 50e9, 64e9},
      Machine{"a100-80", bytes(79.15), bytes(1024), 312e12, 2.04e12, 300e9, 25e9, 32e9},
      Machine{"a100-40", bytes(39.4), bytes(512), 312e12, 1.56e12, 300e9, 25e9, 32e9},
      Machine{"gh200", bytes(94.5), bytes(480), 989e12, 4.0e12, 450e9, 25e9, 450e9}};
  return all;
}

}  // namespace

const Machine* known_machine(std::string_view name) {
  const auto found = std::find_if(machines().begin(), machines().end(),
                                  [name](const Machine& machine) { return machine.name == name; });
  return found == machines().end() ? nullptr : &*found;
}

std::string known_machine_names() {
  std::string out;
  for (const Machine& machine : machines()) out += (out.empty() ? "" : ", ") + machine.name;
  return out;
}

Machine machine_of(const config::MachineFile& file) {
  return {file.name,         file.gpu_memory.count, file.host_memory.count, file.flops,
          file.memory_speed, file.node_link,        file.network,           file.host_link};
}

}  // namespace trireme::plan
