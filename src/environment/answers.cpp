#include "environment/answers.hpp"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "trireme/base/error.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/data/messages.hpp"
#include "trireme/text/json_text.hpp"

namespace trireme::environment {
namespace {

using text::OrderedJson;

// Every reader of JSON takes integers up to 2^53 as they are.
constexpr uint64_t seed_mask = (uint64_t{1} << 53) - 1;

data::JsonObject request(const char* type, uint64_t episode) {
  data::JsonObject line;
  line.add("type", type).add("episode", std::to_string(episode));
  return line;
}

// The part of a line after the id.
std::string rest_of(const data::JsonObject& line) { return ", " + line.str().substr(1); }

std::string calls_json(const std::vector<ToolCall>& calls) {
  std::string out = "[";
  for (const ToolCall& call : calls) {
    data::JsonObject object;
    object.add("name", call.name).add_json("arguments", call.arguments);
    out += (out.size() > 1 ? "," : "") + object.str();
  }
  return out + "]";
}

// Reads the members of one answer.
class Reader {
 public:
  Reader(const text::Json& json, const std::string& about, std::string_view line)
      : json_(json), about_(about), line_(line) {}

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    throw UserError(ExitCode::bad_data,
                    base::text(about_, ": ", parts..., ": ", plugin::excerpt(line_)));
  }
  // nullptr: absent or null.
  const text::Json* find(const char* name) const {
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  std::string text() const {
    const text::Json* text = find("text");
    if (text && !text->is_string()) refuse("\"text\" is ", text::kind_of(*text), ", not a text");
    return text ? text->get<std::string>() : std::string();
  }
  bool done() const {
    const text::Json* done = find("done");
    if (done && !done->is_boolean()) refuse("\"done\" is neither true nor false");
    return done && done->get<bool>();
  }
  // Positions of calls that failed.
  std::vector<size_t> failed(size_t calls) const {
    const text::Json* list = find("failed");
    if (!list) return {};
    std::vector<size_t> out;
    const auto fits = [&](const text::Json& position) {
      return position.is_number_unsigned() && position.get<uint64_t>() < calls &&
             std::ranges::find(out, position.get<size_t>()) == out.end();
    };
    bool all = list->is_array();
    for (size_t i = 0; all && i < list->size(); ++i) {
      all = fits((*list)[i]);
      if (all) out.push_back((*list)[i].get<size_t>());
    }
    if (!all) {
      refuse(
          "\"failed\" is not a list of positions in \"calls\", from 0 and each once (the turn has ",
          calls, calls == 1 ? " call)" : " calls)");
    }
    return out;
  }
  double reward() const {
    const text::Json* reward = find("reward");
    if (reward && !plugin::is_finite(*reward)) refuse("the reward is not a finite number");
    return reward ? reward->get<double>() : 0;
  }

 private:
  const text::Json& json_;
  const std::string& about_;
  std::string_view line_;
};

std::vector<text::Message> messages_of(const OrderedJson& json, const std::string& about) {
  const auto list = json.find("messages");
  if (list == json.end() || list->is_null() || (list->is_array() && list->empty())) return {};
  return data::read_messages(*list, "messages", about);
}

void check_observation(const Reader& reader, const Reply& reply, const AnswerReader::Asked& asked) {
  if (!reply.messages.empty() && !reply.text.empty())
    reader.refuse("\"messages\" and \"text\" (an observation is one of the two)");
  if (!reply.messages.empty() && !asked.chat)
    reader.refuse(
        "\"messages\" in an episode whose prompt is a plain text (there is no chat template to "
        "render them: answer \"text\", or set data.apply_chat_template)");
  if (asked.reset) {
    if (reply.reward != 0) reader.refuse("a reset has no reward");
    if (reply.done) reader.refuse("\"done\" before the first turn");
    return;
  }
  for (const text::Message& message : reply.messages) {
    if (message.role == "assistant")
      reader.refuse("an observation with the role \"assistant\" (turns of the policy are its own)");
  }
  if (!reply.done && reply.messages.empty() && reply.text.empty())
    reader.refuse(
        "neither \"messages\" nor \"text\" nor \"done\" (what does the next turn answer?)");
}

}  // namespace

std::string reset_text(const Reset& reset, int64_t max_turns) {
  data::JsonObject line = request("reset", reset.episode);
  line.add("prompt", reset.prompt);
  if (!reset.messages.empty()) line.add_json("messages", data::messages_json(reset.messages));
  line.add("label", reset.label);
  if (!reset.extra.empty()) line.add_json("extra", reset.extra);
  line.add("seed", static_cast<int64_t>(reset.seed & seed_mask)).add("max_turns", max_turns);
  return rest_of(line);
}

std::string step_text(const Step& step, const ToolCalls* calls) {
  data::JsonObject line = request("step", step.episode);
  line.add("turn", step.turn)
      .add("text", step.text)
      .add("finish_reason", to_string(step.finish_reason));
  if (calls) line.add_json("calls", calls_json(calls->calls));
  if (calls && !calls->error.empty()) line.add("error", calls->error);
  return rest_of(line);
}

std::string close_text(uint64_t episode) { return rest_of(request("close", episode)); }

std::string line_of(uint64_t id, const std::string& text) {
  return base::text("{\"v\": 1, \"id\": \"", id, "\"", text, "\n");
}

bool looks_like_answer(std::string_view line) {
  return line.starts_with('{') && line.find("\"id\"") != std::string_view::npos;
}

AnswerReader::Answer AnswerReader::read(std::string_view line, const Asked& asked) {
  const std::string about = base::text(who_, ", ", asked.where);
  OrderedJson json = text::parse_record(line, {about + ", answer"});
  VALIDATE(json.is_object(), ExitCode::bad_data, about, ": the answer is ", text::kind_of(json),
           ", expected an object: ", plugin::excerpt(line));
  Answer answer;
  Reply& reply = answer.reply;
  reply.messages = messages_of(json, about);
  json.erase("id");
  answer.digest = std::hash<std::string>{}(text::dump(json));
  json.erase("messages");
  const text::Json rest = json;
  const Reader reader(rest, about, line);
  reply.text = reader.text();
  reply.reward = reader.reward();
  reply.done = reader.done();
  answer.failed = reader.failed(asked.calls);
  reply.metrics = metrics_.read(rest, asked.where, line);
  check_observation(reader, reply, asked);
  return answer;
}

}  // namespace trireme::environment
