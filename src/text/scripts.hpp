// A pattern of runs of one Unicode script, as HF's pre-tokenizer UnicodeScripts cuts texts.
#pragma once

#include <string>

namespace trireme::text {

// Spaces and characters without a script belong to the run before them; Han, Hiragana and Katakana
// are one.
std::string script_runs_pattern();

}  // namespace trireme::text
