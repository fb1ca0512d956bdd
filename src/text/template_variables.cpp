// Variables of chat templates beside the messages: allowed names, and whose value counts.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "trireme/text/json_text.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::text {
namespace {

// Names that mean something else: variables of every template, and arguments of HF's
// apply_chat_template that are not variables.
constexpr std::array reserved{"messages",
                              "conversation",
                              "add_generation_prompt",
                              "continue_final_message",
                              "raise_exception",
                              "namespace",
                              "range",
                              "strftime_now",
                              "chat_template",
                              "tokenize",
                              "padding",
                              "truncation",
                              "max_length",
                              "return_tensors",
                              "return_dict",
                              "return_assistant_tokens_mask",
                              "tokenizer_kwargs"};

}  // namespace

void check_template_variables(std::string_view json, const std::string& name, ExitCode code) {
  OrderedJson variables;
  try {
    variables = parse_record(json, {name, 1});
  } catch (const UserError& error) { throw UserError(code, error.what()); }
  VALIDATE(variables.is_object(), code, name, " is ", kind_of(variables),
           ", expected a JSON object of the template's variables, as {\"enable_thinking\": false}: "
           "correct it");
  for (const char* key : {"tools", "documents"}) {
    const auto list = variables.find(key);
    const bool fits = list == variables.end() || list->is_null() ||
                      (list->is_array() && std::ranges::all_of(*list, [](const auto& entry) {
                         return entry.is_object();
                       }));
    VALIDATE(fits, code, name, ": \"", key, "\" is ", kind_of(*list),
             list->is_array() ? " with an entry that is none" : "",
             ", expected a list of objects: correct it");
  }
  for (const auto& [key, value] : variables.items()) {
    VALIDATE(std::ranges::find(reserved, key) == reserved.end(), code, name, " has \"", key,
             "\", which is not a variable of templates (it is set by the program): remove it");
  }
}

std::string merged_variables(const std::string& under, const std::string& over) {
  if (under.empty() || over.empty()) return under.empty() ? over : under;
  OrderedJson merged = parse_record(under, {"variables of the chat template", 1}, Numbers::exact);
  const OrderedJson more =
      parse_record(over, {"variables of the chat template", 1}, Numbers::exact);
  for (const auto& [key, value] : more.items()) merged[key] = value;
  return dump(merged);
}

}  // namespace trireme::text
