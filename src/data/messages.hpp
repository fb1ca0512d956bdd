// Conversations in JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trireme/text/chat_template.hpp"
#include "trireme/text/json_text.hpp"

namespace trireme::data {

// A list of {"role": text, "content": text, ...}. Throws UserError(bad_data) with `where`
// ("file:line") and `key`.
std::vector<text::Message> read_messages(const text::OrderedJson& json, const std::string& key,
                                         const std::string& where);

}  // namespace trireme::data
