// Biases of tokens, as decks and command lines write them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/token_bias.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::text {

// Entries are "ID=BIAS" or "text:TEXT=BIAS", where TEXT is one token of this vocabulary, special or
// not, and BIAS is in [-100, 100]: -100 keeps a token from being drawn wherever another one can be.
// Sorted by id. Throws UserError(configuration) naming `key`: an entry of another form, an id
// outside the `vocabulary`, a text of several tokens, a token that stands twice.
std::vector<TokenBias> token_biases(const Tokenizer& tokenizer,
                                    const std::vector<std::string>& entries, int64_t vocabulary,
                                    const std::string& key);

}  // namespace trireme::text
