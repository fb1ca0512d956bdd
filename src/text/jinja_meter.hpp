// Limits of one rendering. A template comes with a model from a stranger: everything that takes
// time or memory in proportion to values is charged here before it is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "text/jinja_syntax.hpp"
#include "trireme/base/text.hpp"

namespace trireme::text::jinja {

// A conversation of 1000 turns takes some 10^5 steps.
inline constexpr uint64_t most_steps = 2'000'000;
inline constexpr uint64_t bytes_per_step = 256;
inline constexpr uint64_t longest_text = uint64_t{64} << 20;
// Lists and mappings in one another. Functions that go through a value call themselves that often,
// twice as often where a namespace is in it; JSON of a data set is nested at most 128 deep.
inline constexpr int deepest_value = 200;

class Meter {
 public:
  explicit Meter(const Source& source) : source_(source) {}
  // Throw UserError(bad_data) naming the position.
  [[noreturn]] void fail(size_t at, const std::string& problem) const { source_.fail(at, problem); }
  void charge(size_t at, uint64_t steps) {
    steps_ += steps;
    if (steps_ > most_steps)
      fail(at, base::text("the template took more than ", most_steps, " steps"));
  }

 private:
  const Source& source_;
  uint64_t steps_ = 0;
};

// The meter at the position of the expression that is evaluated.
struct Place {
  Meter& meter;
  size_t at;

  [[noreturn]] void fail(const std::string& problem) const { meter.fail(at, problem); }
  void charge(uint64_t steps = 1) const { meter.charge(at, steps); }
  // Going through the members of a mapping by their names.
  void charge_search(size_t members) const { charge(members / 16); }
  void check_length(uint64_t bytes) const {
    if (bytes > longest_text)
      fail(base::text("a text is longer than ", longest_text >> 20, " MiB"));
  }
  // A text that is made or gone through.
  void charge_text(uint64_t bytes) const {
    check_length(bytes);
    charge(bytes / bytes_per_step);
  }
};

}  // namespace trireme::text::jinja
