// Compares results with golden numbers, remembers the worst error of each formula for the table at
// the end of the run, and which outputs of the running case were compared: an output that no check
// looks at is a failure.
#pragma once

#include <ATen/core/Tensor.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "support/golden.hpp"
#include "trireme/config/choices.hpp"
#include "trireme/ppo/packed.hpp"

namespace trireme::test {

// EXPECTs that `got` matches the case's output.
void expect_matches(const GoldenCase& c, std::string_view field, const at::Tensor& got);
void expect_matches(const GoldenCase& c, std::string_view field, double got);

// [B, A] golden rows as packed columns: every row is a sequence of A columns, padding included.
ppo::Segments segments_of(const at::Tensor& rows);
inline at::Tensor flat(const at::Tensor& rows) { return rows.reshape({-1}); }
// A flat copy that collects gradients.
at::Tensor leaf(const at::Tensor& rows);

// The enumerator that a case's word names; `absent` where the case has none. Throws at a word that
// the program does not know.
template <class E>
E choice(const GoldenCase& c, std::string_view key, E absent) {
  const auto word = c.word(key);
  if (!word) return absent;
  size_t index = 0;
  for (const std::string_view known : config::Words<E>::list) {
    if (known == *word) return static_cast<E>(index);
    ++index;
  }
  throw std::runtime_error(c.name + ": unknown word '" + *word + "' of " + std::string(key));
}

}  // namespace trireme::test
