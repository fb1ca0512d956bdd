// Guesses of what a text goes on with, from the text alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::generate {

// Up to `count` tokens: what followed when `tokens` last had its three last tokens before, else its
// two last; nothing where it had neither. A text that is in a loop goes on in it.
std::vector<int32_t> look_up_continuation(std::span<const int32_t> tokens, int64_t count);

}  // namespace trireme::generate
