// Errors: one exception type that carries the process's exit code, and four words for conditions.
//
//   VALIDATE(cond, code, parts...)  user input or environment; always checked; throws UserError
//   EXPECT(cond)                    precondition of a function   \ checked when TRIREME_ASSERTIONS
//   is on; ASSERT(cond)                    internal condition            | throw InternalError with
//   file:line ENSURE(cond)                    postcondition                /
//
// A message reads `problem (why it is one): what to do`, with the value, the key and the file:line
// it came from.
#pragma once

#include <stdexcept>
#include <string>

#include "trireme/base/text.hpp"

namespace trireme {

// Exit codes of the program; numbers from sysexits.h where one exists. docs/user/exit_codes.md
// explains each.
enum class ExitCode : int {
  done = 0,
  usage = 64,
  bad_data = 65,
  input_missing = 66,
  unfit_environment = 69,
  internal = 70,  // also: hang, lost rank, mismatched collectives
  out_of_memory = 71,
  locked = 73,
  io_error = 74,
  stopped_with_checkpoint = 75,
  stopped_without_checkpoint = 76,
  permission = 77,
  configuration = 78,
};

// What went wrong and the exit code it ends the program with. Caught once, in main.
class UserError : public std::runtime_error {
 public:
  UserError(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// A bug of ours: exit code 70.
class InternalError : public UserError {
 public:
  explicit InternalError(const std::string& message) : UserError(ExitCode::internal, message) {}
};

namespace detail {
[[noreturn]] void condition_failed(const char* word, const char* condition, const char* file,
                                   int line);
}

}  // namespace trireme

#define VALIDATE(condition, code, ...)                                        \
  do {                                                                        \
    if (!(condition)) [[unlikely]] {                                          \
      throw ::trireme::UserError((code), ::trireme::base::text(__VA_ARGS__)); \
    }                                                                         \
  } while (false)

#if defined(TRIREME_ASSERTIONS) && TRIREME_ASSERTIONS
#define TRIREME_CONDITION(word, condition)                                       \
  do {                                                                           \
    if (!(condition)) [[unlikely]] {                                             \
      ::trireme::detail::condition_failed(word, #condition, __FILE__, __LINE__); \
    }                                                                            \
  } while (false)
#else
#define TRIREME_CONDITION(word, condition)   \
  do {                                       \
    if (false) static_cast<void>(condition); \
  } while (false)
#endif
#define EXPECT(condition) TRIREME_CONDITION("EXPECT", condition)
#define ASSERT(condition) TRIREME_CONDITION("ASSERT", condition)
#define ENSURE(condition) TRIREME_CONDITION("ENSURE", condition)
