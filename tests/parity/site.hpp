// Where the golden cases are checked: on the host (host_site.cpp), or by the paths of a device
// (tests/fakegpu/parity_site.cpp).
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>

namespace trireme::test {

struct Site {
  bool device = false;
  std::function<std::shared_ptr<void>()> enter;  // what it gives lives as long as a test
};
const Site& site();  // each program's own

// A fixture of tests there.
class AtSite : public testing::Test {
 private:
  std::shared_ptr<void> inside_ = site().enter();
};

}  // namespace trireme::test
