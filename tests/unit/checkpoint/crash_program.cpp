// A job for crash_points.sh: saves one step of the test content and ends at a point of that if one
// is given, or loads the newest checkpoint, compares it with the saved content and prints its step.
#include <cstdio>
#include <string>

#include "fixture.hpp"
#include "trireme/base/fault_point.hpp"
#include "trireme/comm/session.hpp"

int main(int argc, char** argv) {
  using namespace trireme;
  if (argc < 3) return 64;
  const comm::Session session;
  const comm::CommView& world = session.world();
  const std::string action = argv[1];
  const std::filesystem::path folder = argv[2];
  try {
    if (action == "save" && argc >= 4) {
      if (argc > 4) base::install_faults({{"exit", argv[4], 1, 137}});
      if (world.rank() == 0) checkpoint::remove_leftovers(folder);
      world.barrier();
      checkpoint::save_test(world, folder, std::stol(argv[3]));
      return 0;
    }
    const auto step = checkpoint::load_newest(world, folder, [&](checkpoint::Reader& reader) {
      checkpoint::expect_test_content(reader, world.rank(), world.size(),
                                      static_cast<uint64_t>(reader.manifest().step));
    });
    const bool good = world.all(!testing::Test::HasFailure());
    if (world.rank() == 0)
      std::printf("%ld %s\n", step ? static_cast<long>(*step) : -1L, good ? "whole" : "WRONG");
    return good ? 0 : 1;
  } catch (const UserError& error) {
    if (world.rank() == 0) std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
