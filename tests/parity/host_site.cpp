#include "parity/site.hpp"

namespace trireme::test {

const Site& site() {
  static const Site host{.device = false, .enter = [] { return nullptr; }};
  return host;
}

}  // namespace trireme::test
