// Words and patterns that name modules, as peft reads them.
#pragma once

#include <regex>
#include <string>
#include <vector>

namespace trireme::model {

// The word that is a module's whole name, or its last parts; null: none.
const std::string* word_for(const std::vector<std::string>& words, const std::string& module);
// Throws UserError(configuration) with the `key` for text that is none.
std::regex expression(const std::string& text, const std::string& key);

}  // namespace trireme::model
