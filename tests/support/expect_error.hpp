// Errors that a test expects.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "trireme/base/error.hpp"

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

}  // namespace trireme::test
