// Conversations in records.
#pragma once

#include <string>
#include <vector>

#include "trireme/text/chat_template.hpp"
#include "trireme/text/json_text.hpp"

namespace trireme::data {

// A list of turns: {"role": text, "content": text, a list of text parts, or null, ...}, or
// ShareGPT's {"from": ..., "value": text}. Throws UserError(bad_data) with `where` ("file:line")
// and `key`.
std::vector<text::Message> read_messages(const text::OrderedJson& json, const std::string& key,
                                         const std::string& where);

// One turn, which stands for a list of it.
bool is_turn(const text::OrderedJson& json);

// Whether an assistant's turn is learned from: not where its `weight` is 0, as in OpenAI's files
// for fine-tuning. Throws UserError(bad_data) with `where` when it is neither 0 nor 1.
bool is_learned(const text::Message& turn, const std::string& where);

// Anthropic HH: "\n\nHuman: ...\n\nAssistant: ..." in one text.
bool is_dialogue(const std::string& text);
std::vector<text::Message> read_dialogue(const std::string& text);
// Where the last answer begins, after "Assistant:".
size_t end_of_dialogue_prompt(const std::string& text);

}  // namespace trireme::data
