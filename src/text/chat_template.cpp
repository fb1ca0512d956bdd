#include "trireme/text/chat_template.hpp"

#include "text/jinja_eval.hpp"
#include "text/jinja_syntax.hpp"
#include "trireme/base/error.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {

namespace {

// The largest known has 50 KiB; syntax trees take a hundred times their text.
constexpr size_t longest_template = size_t{1} << 20;

// Jinja reads every line end as \n and drops the last one.
std::string with_plain_line_ends(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      out += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else {
      out += text[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

jinja::Value message_value(const Message& message) {
  jinja::Members members;
  members.emplace_back("role", message.role);
  members.emplace_back("content", message.content);
  if (message.extra.empty()) return jinja::Value::dict(std::move(members));
  const OrderedJson extra = parse_record(message.extra, {"a message's other fields", 1});
  for (const auto& [key, value] : extra.items())
    members.emplace_back(key, jinja::Value::from_json(value));
  return jinja::Value::dict(std::move(members));
}

}  // namespace

struct ChatTemplate::Program {
  jinja::Source source;
  jinja::Body body;
};

ChatTemplate::ChatTemplate(const std::string& text, std::string source) {
  VALIDATE(text.size() <= longest_template, ExitCode::bad_data, source, ": a chat template of ",
           text.size(), " bytes (the limit is ", longest_template,
           "): the file is damaged or not what it claims to be");
  auto program = std::make_shared<Program>();
  program->source = {with_plain_line_ends(text), std::move(source)};
  if (const size_t invalid = first_invalid_utf8(program->source.text);
      invalid != std::string::npos) {
    program->source.fail(invalid, "not UTF-8");
  }
  program->body = jinja::parse(program->source);
  program_ = std::move(program);
}

std::string ChatTemplate::render(std::span<const Message> messages, GenerationPrompt prompt,
                                 const std::map<std::string, std::string>& special_tokens) const {
  jinja::Renderer renderer(program_->source);
  jinja::List list;
  for (const Message& message : messages) list.push_back(message_value(message));
  renderer.define("messages", jinja::Value::list(std::move(list)));
  renderer.define("add_generation_prompt", prompt == GenerationPrompt::with);
  renderer.define("tools", jinja::None{});  // HF passes None for what the caller does not give
  renderer.define("documents", jinja::None{});
  for (const auto& [name, text] : special_tokens) renderer.define(name, text);
  renderer.define("raise_exception", jinja::Builtin::raise_exception);
  renderer.define("namespace", jinja::Builtin::make_namespace);
  renderer.define("range", jinja::Builtin::range);
  return renderer.run(program_->body);
}

}  // namespace trireme::text
