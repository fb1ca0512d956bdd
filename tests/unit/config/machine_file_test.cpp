// Machines that `trireme plan` reads from a file.
#include "trireme/config/machine_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "expect_error.hpp"

namespace trireme::config {
namespace {

using testing::HasSubstr;

constexpr const char* whole = R"(
name = "site"
gpu_memory = "79.1 GiB"
host_memory = "1 TiB"
flops = 989e12
memory_speed = 3.35e12
node_link = 450e9
network = 50000000000
host_link = 64e9
)";

TEST(MachineFile, SaysMemoryAndSpeeds) {
  const MachineFile machine = parse_machine_file(whole, "site.toml");
  EXPECT_EQ(machine.name, "site");
  EXPECT_EQ(machine.gpu_memory.count, static_cast<int64_t>(79.1 * 0x1p30));
  EXPECT_EQ(machine.host_memory.count, int64_t{1} << 40);
  EXPECT_EQ(machine.flops, 989e12);
  EXPECT_EQ(machine.memory_speed, 3.35e12);
  EXPECT_EQ(machine.node_link, 450e9);
  EXPECT_EQ(machine.network, 50e9);
  EXPECT_EQ(machine.host_link, 64e9);
}

TEST(MachineFile, MemoryAloneIsEnough) {
  const MachineFile cpus = parse_machine_file("host_memory = \"64 GiB\"", "cpus.toml");
  EXPECT_EQ(cpus.gpu_memory.count, 0);
  EXPECT_EQ(cpus.flops, 0);
  EXPECT_EQ(
      parse_machine_file("host_memory = 1000\ngpu_memory = 100", "small.toml").gpu_memory.count,
      100);
}

TEST(MachineFile, IsCalledAsItsFileWhereItSaysNoName) {
  const auto path = std::filesystem::path(testing::TempDir()) / "my-site.toml";
  std::ofstream(path) << "host_memory = \"64 GiB\"\n";
  EXPECT_EQ(load_machine_file(path).name, "my-site");
  EXPECT_THAT(error_of(ExitCode::input_missing, [] { load_machine_file("/no/such/machine.toml"); }),
              HasSubstr("/no/such/machine.toml"));
}

TEST(MachineFile, RefusesWhatItCannotMean) {
  const auto refusal = [](const std::string& text) {
    return error_of(ExitCode::configuration, [&] { parse_machine_file(text, "m.toml"); });
  };
  EXPECT_THAT(refusal("gpu_memory = \"79 GiB\""), HasSubstr("m.toml: host_memory is missing"));
  EXPECT_THAT(refusal("host_memory = \"1 TiB\"\ngpu_memry = 3"),
              HasSubstr("m.toml:2: gpu_memry is not a key of a machine (nearest: gpu_memory)"));
  EXPECT_THAT(
      refusal("host_memory = \"1 TiB\"\n[gpu]\nspins = 3"),
      HasSubstr("m.toml:3: gpu.spins is not a key of a machine (known: name, gpu_memory, "));
  EXPECT_THAT(refusal("host_memory = \"much\""),
              HasSubstr("m.toml:1: host_memory is \"much\", which is no size"));
  EXPECT_THAT(refusal("host_memory = 0"), HasSubstr("m.toml:1: host_memory"));
  EXPECT_THAT(refusal("host_memory = \"1 TiB\"\nflops = -1.0"), HasSubstr("m.toml:2: flops"));
  EXPECT_THAT(refusal("host_memory = \"1 TiB\"\nflops = nan"), HasSubstr("m.toml:2: flops"));
  const std::string some =
      refusal("host_memory = \"1 TiB\"\ngpu_memory = \"79 GiB\"\nflops = 1e12\nnetwork = 1e9");
  EXPECT_THAT(some, HasSubstr("memory_speed, node_link, host_link missing"));
  EXPECT_THAT(refusal("host_memory = \"1 TiB\"\nflops = 1e12"),
              HasSubstr("speeds are those of GPUs, but gpu_memory is missing"));
  EXPECT_THAT(refusal("host_memory = "), HasSubstr("m.toml:1:"));
  const std::string several = refusal("host_memory = true\nspeed = 1\n");
  EXPECT_THAT(several, HasSubstr("m.toml:1: host_memory"));
  EXPECT_THAT(several, HasSubstr("m.toml:2: speed"));
}

}  // namespace
}  // namespace trireme::config
