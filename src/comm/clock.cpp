#include "trireme/comm/clock.hpp"

#include <limits>

#include "trireme/base/stopwatch.hpp"

namespace trireme::comm {

double measure_clock_offset(const CommView& world) {
  constexpr int rounds = 20;
  double offset = 0;
  for (int peer = 1; peer < world.size(); ++peer) {
    if (world.rank() == 0) {
      for (int i = 0; i < rounds; ++i) {
        char ping = 0;
        world.receive(&ping, 1, peer, Tag::clock);
        const double now = base::monotonic_seconds();
        world.send(&now, sizeof now, peer, Tag::clock);
      }
    } else if (world.rank() == peer) {
      double shortest = std::numeric_limits<double>::infinity();
      for (int i = 0; i < rounds; ++i) {
        const double sent = base::monotonic_seconds();
        const char ping = 0;
        double theirs = 0;
        world.send(&ping, 1, 0, Tag::clock);
        world.receive(&theirs, sizeof theirs, 0, Tag::clock);
        const double received = base::monotonic_seconds();
        if (received - sent < shortest) {  // the shortest round trip bounds the error best
          shortest = received - sent;
          offset = theirs - 0.5 * (sent + received);
        }
      }
    }
  }
  return offset;
}

}  // namespace trireme::comm
