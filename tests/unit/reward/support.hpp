#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/expect_error.hpp"
#include "trireme/reward/reward.hpp"

namespace trireme::test {

inline reward::Request request(uint64_t id, std::string response, std::string label) {
  reward::Request out;
  out.id = id;
  out.prompt = "What is it?";
  out.response = std::move(response);
  out.label = std::move(label);
  out.ids = {1, 2, 3, 4, 5, 6};
  out.prompt_len = 2;
  return out;
}

}  // namespace trireme::test
