#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "trireme/base/error.hpp"

namespace trireme::config {

// Runs `call`, which must throw UserError with `code`; returns the message.
template <class Call>
std::string error_of(ExitCode code, Call call) {
  try {
    call();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

}  // namespace trireme::config
