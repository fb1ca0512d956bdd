// Conversations in JSON.
#pragma once

#include <string>
#include <vector>

#include "data/json_text.hpp"
#include "trireme/data/chat_template.hpp"

namespace trireme::data {

// A list of {"role": text, "content": text, ...}. Throws UserError(bad_data) with `where` ("file:line") and `key`.
std::vector<Message> read_messages(const OrderedJson& json, const std::string& key, const std::string& where);

}  // namespace trireme::data
