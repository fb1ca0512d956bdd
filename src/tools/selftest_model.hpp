// The model that `trireme selftest` trains for four steps: weights and sequences by a formula, the
// same as in tests/gold/make_selftest.py.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/base/shard_layout.hpp"
#include "trireme/model/spec.hpp"

namespace trireme::tools::selftest {

inline constexpr int64_t sequences = 8;

model::ModelSpec tiny_model();
// Rows `block` of a parameter.
void initial_rows(const model::ModelSpec& spec, size_t parameter, const base::Block& block,
                  float* out);
std::vector<int32_t> sequence(int64_t number);
// Of all sequences: how many tokens have one before them.
int64_t targets();

}  // namespace trireme::tools::selftest
