// A value that is added to a token's logit before each draw.
#pragma once

#include <cstdint>

namespace trireme {

struct TokenBias {
  int32_t id = 0;
  float bias = 0;
  bool operator==(const TokenBias& other) const {
    return id == other.id && bias == other.bias;
  }  // device code is C++17
};

}  // namespace trireme
