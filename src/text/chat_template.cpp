#include "trireme/text/chat_template.hpp"

#include <algorithm>
#include <set>
#include <string_view>

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

OrderedJson other_fields(const Message& message) {
  return message.extra.empty()
             ? OrderedJson::object()
             : parse_record(message.extra, {"a message's other fields", 1}, Numbers::exact);
}

jinja::Value message_value(const Message& message, bool takes_parts) {
  const OrderedJson extra = other_fields(message);
  jinja::Members members;
  members.emplace_back("role", message.role);
  if (message.content) {
    members.emplace_back("content", *message.content);
  } else if (const auto content = extra.find("content"); content != extra.end()) {
    const bool as_text = content->is_array() && !takes_parts;
    members.emplace_back("content", as_text ? jinja::Value(content_text(message))
                                            : jinja::Value::from_json(*content));
  }
  for (const auto& [key, value] : extra.items()) {
    if (key != "content") members.emplace_back(key, jinja::Value::from_json(value));
  }
  return jinja::Value::dict(std::move(members));
}

// The marker that transformers puts after the turn to continue, to find its end when rendered.
constexpr std::string_view end_tag = "CONTINUE_FINAL_MESSAGE_TAG ";
constexpr std::string_view end_tag_stripped = end_tag.substr(0, end_tag.size() - 1);

std::string_view stripped(std::string_view text) {
  text.remove_prefix(leading_space(text, is_python_space));
  text.remove_suffix(trailing_space(text, is_python_space));
  return text;
}

// Puts the tag after the turn's text; returns the text.
std::string add_end_tag(Message& turn) {
  if (turn.content) {
    std::string text = *turn.content;
    *turn.content += end_tag;
    return text;
  }
  OrderedJson extra = other_fields(turn);
  const auto content = extra.find("content");
  VALIDATE(
      content != extra.end() && content->is_array() && !content->empty(), ExitCode::bad_data,
      "the chat ends in a turn of \"", turn.role,
      "\" without text (a tool call), which cannot be continued: add the turn that answers it");
  std::string text = content->back().at("text").get<std::string>();
  content->back()["text"] = text + std::string(end_tag);
  turn.extra = dump(extra);
  return text;
}

// The rendered text up to the end of the last turn's, as transformers cuts it.
std::string cut_at_end_tag(std::string rendered, const std::string& text) {
  const size_t at = rendered.rfind(end_tag_stripped);
  VALIDATE(
      at != std::string::npos && rendered.find(stripped(text)) != std::string::npos,
      ExitCode::bad_data,
      "the chat ends in an assistant's turn, but the chat template changes its text, so that it "
      "cannot be continued: let the chat end in a turn of the user");
  const bool keeps_space = rendered.compare(at, end_tag.size(), end_tag) == 0;
  rendered.resize(at);
  if (!keeps_space) rendered.resize(rendered.size() - trailing_space(rendered, is_python_space));
  return rendered;
}

// Whether an expression is a message's content, or a name that holds one.
bool is_content(const jinja::Expression& e, const std::set<std::string>& names) {
  using Kind = jinja::Expression::Kind;
  switch (e.kind) {
    case Kind::attribute: return e.text == "content";
    case Kind::index:
      return e.parts[1]->kind == Kind::literal && e.parts[1]->value.is_string() &&
             e.parts[1]->value.string() == "content";
    case Kind::filter:
    case Kind::slice: return is_content(*e.parts[0], names);
    case Kind::name: return names.contains(e.text);
    default: return false;
  }
}

// Whether a template loops over contents: it knows their parts.
bool loops_over_content(const jinja::Body& body, std::set<std::string>& names) {
  using Kind = jinja::Statement::Kind;
  for (const jinja::Statement& statement : body) {
    if (statement.kind == Kind::assign && statement.names.size() == 1 &&
        statement.attribute.empty() && statement.condition &&
        is_content(*statement.condition, names))
      names.insert(statement.names[0]);
    if (statement.kind == Kind::macro) {  // as templates name a parameter that takes it
      const auto& all = statement.names;
      if (std::find(all.begin() + 1, all.end(), "content") != all.end()) names.insert("content");
    }
    if (statement.kind == Kind::loop && is_content(*statement.condition, names)) return true;
    for (const auto& branch : statement.branches) {
      if (loops_over_content(branch.body, names)) return true;
    }
  }
  return false;
}

void define_variables(jinja::Renderer& renderer, const std::string& json) {
  if (json.empty()) return;
  const OrderedJson variables =
      parse_record(json, {"variables of the chat template", 1}, Numbers::exact);
  for (const auto& [name, value] : variables.items())
    renderer.define(name, jinja::Value::from_json(value));
}

}  // namespace

struct ChatTemplate::Program {
  jinja::Source source;
  jinja::Body body;
  bool takes_parts = false;
  bool asks_for_date = false;
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
  std::set<std::string> names{"content"};
  program->takes_parts = loops_over_content(program->body, names);
  program->asks_for_date = program->source.text.find("strftime_now") != std::string::npos;
  program_ = std::move(program);
}

std::string content_text(const Message& message) {
  if (message.content || message.extra.empty()) return message.content.value_or("");
  const OrderedJson extra = other_fields(message);
  const auto content = extra.find("content");
  if (content == extra.end() || !content->is_array()) return "";
  std::string text;
  for (size_t i = 0; i < content->size(); ++i)
    text += (i > 0 ? "\n" : "") + (*content)[i].value("text", "");
  return text;
}

std::string ChatTemplate::render(std::span<const Message> messages, GenerationPrompt prompt,
                                 const std::map<std::string, std::string>& special_tokens,
                                 const TemplateInputs& inputs) const {
  std::vector<Message> turns(messages.begin(), messages.end());
  const bool continued = prompt == GenerationPrompt::continued && !turns.empty();
  const std::string last = continued ? add_end_tag(turns.back()) : "";
  jinja::Renderer renderer(program_->source, inputs.date);
  jinja::List list;
  for (const Message& turn : turns) list.push_back(message_value(turn, program_->takes_parts));
  renderer.define("tools", jinja::None{});  // HF passes None for what the caller does not give
  renderer.define("documents", jinja::None{});
  for (const auto& [name, text] : special_tokens) renderer.define(name, text);
  define_variables(renderer, inputs.variables);
  renderer.define("messages", jinja::Value::list(std::move(list)));
  renderer.define("add_generation_prompt", prompt == GenerationPrompt::with);
  renderer.define("raise_exception", jinja::Builtin::raise_exception);
  renderer.define("namespace", jinja::Builtin::make_namespace);
  renderer.define("range", jinja::Builtin::range);
  renderer.define("dict", jinja::Builtin::make_dict);
  renderer.define("joiner", jinja::Builtin::make_joiner);
  renderer.define("cycler", jinja::Builtin::make_cycler);
  std::string rendered = renderer.run(program_->body);
  return continued ? cut_at_end_tag(std::move(rendered), last) : rendered;
}

bool ChatTemplate::asks_for_date() const { return program_->asks_for_date; }

const std::string& ChatTemplate::text() const { return program_->source.text; }

}  // namespace trireme::text
