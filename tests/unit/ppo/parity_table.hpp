// Compares with golden numbers and remembers the worst error of each formula for the table at the end of the run.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "support/golden.hpp"
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

}  // namespace trireme::test
