// Written by tests/gold/make_selftest.py with PyTorch 2.11.0 in float64.
#pragma once

#include <array>

namespace trireme::tools::selftest {

// Before the step, and over all parameters before clipping.
inline constexpr std::array<double, 4> losses{4.30431319869, 3.67544320128, 3.19681320319,
                                              2.83340397406};
inline constexpr std::array<double, 4> gradient_norms{2.64131736127, 2.66714311743, 1.10133520428,
                                                      0.938759222552};

}  // namespace trireme::tools::selftest
