#include "data/messages.hpp"

#include "trireme/base/error.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/data/prompt_set.hpp"

namespace trireme::data {

namespace {

std::string text_of(const text::OrderedJson& message, const char* field, const std::string& name,
                    const std::string& where) {
  const auto found = message.find(field);
  VALIDATE(found != message.end(), ExitCode::bad_data, where, ": ", name, " has no `", field,
           "`: add it");
  const bool parts = found->is_array() && std::string_view(field) == "content";
  VALIDATE(!parts, ExitCode::bad_data, where, ": ", name,
           ".content is a list of parts (images, audio), which is not known: give one text");
  VALIDATE(found->is_string(), ExitCode::bad_data, where, ": ", name, ".", field, " is ",
           text::kind_of(*found), ", expected a text: correct it");
  return found->get<std::string>();
}

}  // namespace

std::vector<text::Message> read_messages(const text::OrderedJson& json, const std::string& key,
                                         const std::string& where) {
  VALIDATE(json.is_array(), ExitCode::bad_data, where, ": `", key, "` is ", text::kind_of(json),
           ", expected a list of messages: correct it");
  VALIDATE(!json.empty(), ExitCode::bad_data, where, ": `", key,
           "` is an empty list: give at least one message");
  std::vector<text::Message> messages;
  for (const text::OrderedJson& entry : json) {
    const std::string name = base::text(key, "[", messages.size(), "]");
    VALIDATE(entry.is_object(), ExitCode::bad_data, where, ": ", name, " is ", text::kind_of(entry),
             ", expected an object with role and content: correct it");
    text::Message message{text_of(entry, "role", name, where),
                          text_of(entry, "content", name, where), ""};
    text::OrderedJson extra = text::OrderedJson::object();
    for (const auto& [field, value] : entry.items()) {
      if (field != "role" && field != "content") extra[field] = value;
    }
    if (!extra.empty()) message.extra = text::dump(extra);
    messages.push_back(std::move(message));
  }
  return messages;
}

std::string messages_json(std::span<const text::Message> messages) {
  std::string out = "[";
  for (const text::Message& message : messages) {
    if (out.size() > 1) out += ",";
    std::string object =
        JsonObject().add("role", message.role).add("content", message.content).str();
    if (message.extra.size() > 2) {  // more than {}
      object.back() = ',';
      object += message.extra.substr(1);
    }
    out += object;
  }
  return out + "]";
}

}  // namespace trireme::data
