#include "trireme/data/messages.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "trireme/base/error.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/data/prompt_set.hpp"

namespace trireme::data {

namespace {

using text::OrderedJson;

// One turn in JSON, and its name for messages.
class TurnReader {
 public:
  TurnReader(const OrderedJson& json, std::string name, const std::string& where)
      : json_(json), name_(std::move(name)), where_(where) {}

  text::Message read() const {
    VALIDATE(json_.is_object(), ExitCode::bad_data, where_, ": ", name_, " is ",
             text::kind_of(json_), ", expected an object with role and content: correct it");
    if (!json_.contains("role") && json_.contains("from")) return of_sharegpt();
    text::Message message{text_of("role"), std::nullopt, ""};
    OrderedJson extra = OrderedJson::object();
    for (const auto& [field, value] : json_.items()) {
      if (field != "role" && field != "content") extra[field] = value;
    }
    read_content(message, extra);
    if (!extra.empty()) message.extra = text::dump(extra);
    return message;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw UserError(ExitCode::bad_data, where_ + ": " + name_ + problem);
  }
  std::string text_of(const char* field) const {
    const auto found = json_.find(field);
    if (found == json_.end()) fail(base::text(" has no `", field, "`: add it"));
    if (!found->is_string())
      fail(base::text(".", field, " is ", text::kind_of(*found), ", expected a text: correct it"));
    return found->get<std::string>();
  }
  bool has(const char* field) const { return json_.contains(field) && !json_[field].empty(); }

  // `content` is a text, a list of text parts, or, beside a call of a tool, null or absent.
  void read_content(text::Message& message, OrderedJson& extra) const {
    const auto content = json_.find("content");
    const bool calls = has("tool_calls") || has("function_call");
    if (content == json_.end() || content->is_null()) {
      if (!calls) {
        fail(content == json_.end()
                 ? " has no `content`: add it"
                 : ".content is null, which only a turn with `tool_calls` may have: give a text");
      }
      if (content != json_.end()) extra["content"] = nullptr;
    } else if (content->is_array()) {
      extra["content"] = parts(*content);
    } else {
      message.content = text_of("content");
    }
  }

  OrderedJson parts(const OrderedJson& content) const {
    OrderedJson read = OrderedJson::array();
    for (const OrderedJson& part : content) {
      const std::string name = base::text(".content[", read.size(), "]");
      if (part.is_string()) {
        read.push_back({{"type", "text"}, {"text", part}});
        continue;
      }
      if (!part.is_object())
        fail(name + " is " + text::kind_of(part) + ", expected a part with type and text");
      const std::string type = text::dump(part.value("type", OrderedJson("text")));
      static constexpr std::array texts{"\"text\"", "\"input_text\"", "\"output_text\""};
      if (std::ranges::find(texts, type) == texts.end()) {
        fail(name + " has the type " + type +
             ", but models here read texts only (no images, audio or files): remove the part or "
             "the record");
      }
      const auto text = part.find("text");
      if (text == part.end() || !text->is_string()) fail(name + " has no `text`: add it");
      read.push_back(part);
    }
    return read;
  }

  // LLaMA-Factory's and FastChat's words for the roles.
  text::Message of_sharegpt() const {
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 9> roles{
        {{"human", "user"},
         {"user", "user"},
         {"gpt", "assistant"},
         {"chatgpt", "assistant"},
         {"bing", "assistant"},
         {"bard", "assistant"},
         {"assistant", "assistant"},
         {"system", "system"},
         {"observation", "tool"}}};
    const std::string from = text_of("from");
    const auto found = std::ranges::find(roles, from, [](const auto& role) { return role.first; });
    if (found == roles.end()) {
      fail(".from is \"" + from +
           "\", expected human, gpt, system or observation: correct it, or give the turn as "
           "{role, content}");
    }
    return {std::string(found->second), text_of("value"), ""};
  }

  const OrderedJson& json_;
  std::string name_;
  const std::string& where_;
};

constexpr std::string_view human = "\n\nHuman:", assistant = "\n\nAssistant:";

// A dialogue may have lost its leading line ends.
bool begins_with_human(std::string_view text) {
  return text.starts_with(human) || text.starts_with(human.substr(2));
}

}  // namespace

bool is_turn(const OrderedJson& json) {
  return json.is_object() && (json.contains("role") || json.contains("from"));
}

std::vector<text::Message> read_messages(const OrderedJson& json, const std::string& key,
                                         const std::string& where) {
  if (is_turn(json)) return {TurnReader(json, key, where).read()};
  VALIDATE(json.is_array(), ExitCode::bad_data, where, ": `", key, "` is ", text::kind_of(json),
           ", expected a list of messages: correct it");
  VALIDATE(!json.empty(), ExitCode::bad_data, where, ": `", key,
           "` is an empty list: give at least one message");
  std::vector<text::Message> messages;
  for (const OrderedJson& entry : json)
    messages.push_back(TurnReader(entry, base::text(key, "[", messages.size(), "]"), where).read());
  return messages;
}

bool is_learned(const text::Message& turn, const std::string& where) {
  if (turn.extra.empty()) return true;
  const text::Json extra = text::parse_json(turn.extra, {where, 1});
  const auto weight = extra.find("weight");
  if (weight == extra.end() || weight->is_null()) return true;
  VALIDATE(*weight == 0 || *weight == 1, ExitCode::bad_data, where,
           ": the `weight` of a turn of the assistant is ", weight->dump(),
           ", expected 1 (learned) or 0 (not learned): correct it");
  return *weight == 1;
}

std::string messages_json(std::span<const text::Message> messages) {
  std::string out = "[";
  for (const text::Message& message : messages) {
    if (out.size() > 1) out += ",";
    JsonObject fields;
    fields.add("role", message.role);
    if (message.content) fields.add("content", *message.content);
    std::string object = fields.str();
    if (message.extra.size() > 2) {  // more than {}
      object.back() = ',';
      object += message.extra.substr(1);
    }
    out += object;
  }
  return out + "]";
}

bool is_dialogue(const std::string& text) {
  return begins_with_human(text) && text.find(assistant) != std::string::npos;
}

size_t end_of_dialogue_prompt(const std::string& text) {
  const size_t at = text.rfind(assistant);
  return at == std::string::npos ? 0 : at + assistant.size();
}

std::vector<text::Message> read_dialogue(const std::string& dialogue) {
  const std::string text = dialogue.starts_with(human) ? dialogue : "\n\n" + dialogue;
  std::vector<text::Message> turns;
  for (size_t at = 0; at < text.size();) {
    const bool of_human = text.compare(at, human.size(), human) == 0;
    const size_t begin = at + (of_human ? human : assistant).size();
    const size_t next = std::min(text.find(human, begin), text.find(assistant, begin));
    std::string content = text.substr(begin, next == std::string::npos ? next : next - begin);
    if (content.starts_with(' ')) content.erase(0, 1);
    turns.push_back({of_human ? "user" : "assistant", std::move(content), ""});
    at = next == std::string::npos ? text.size() : next;
  }
  return turns;
}

}  // namespace trireme::data
