#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/reward/reward.hpp"

namespace trireme::test {

// Runs `body` and expects a UserError with the code, whose message has the text.
template <class Body>
void expect_error(ExitCode code, const std::string& part, const Body& body) {
  try {
    body();
    ADD_FAILURE() << "no error, expected one with '" << part << "'";
  } catch (const UserError& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

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
