// libFuzzer targets for everything that reads text or bytes of others. One program: TRIREME_FUZZ
// names the target. A refusal (UserError) is a good end; another exception, a report of ASan or
// UBSan, a time-out or too much memory is a finding.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/index.hpp"
#include "checkpoint/manifest.hpp"
#include "config/value.hpp"
#include "environment/answers.hpp"
#include "environment/tool_calls.hpp"
#include "model/gguf_parser.hpp"
#include "model/safetensors_header.hpp"
#include "plugin/lines.hpp"
#include "reward/asked.hpp"
#include "reward/last_number.hpp"
#include "reward/math_answer.hpp"
#include "reward/math_verl.hpp"
#include "text/byte_alphabet.hpp"
#include "text/tokenizer_files.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/samples.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/config/exported_config.hpp"
#include "trireme/config/model_shape.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/data/score_input.hpp"
#include "trireme/job/facts.hpp"
#include "trireme/kernels/parallel.hpp"
#include "trireme/reward/checks.hpp"
#include "trireme/text/chat_template.hpp"
#include "trireme/text/json_text.hpp"
#include "trireme/text/utf8.hpp"
#include "weightsync/delta_stream.hpp"

// All that the index needs of comm, which would bring MPI with it.
size_t trireme::comm::size_of(DType type) {
  return type == DType::u8                          ? 1
         : type == DType::bf16                      ? 2
         : type == DType::i32 || type == DType::f32 ? 4
                                                    : 8;
}

// And all that descriptions of models need of kernels, which would bring LibTorch.
void trireme::kernels::parallel_for(int64_t begin, int64_t end, int64_t,
                                    const std::function<void(int64_t, int64_t)>& body) {
  body(begin, end);
}

namespace {

using namespace trireme;

void require(bool holds) {
  if (!holds) std::abort();
}

// What it refuses is no finding, and the target goes on.
template <class Read>
void read_or_refuse(const Read& read) {
  try {
    read();
  } catch (const UserError&) {}
}

void safetensors_header(std::string_view bytes) {
  const auto header = model::parse_safetensors_header(bytes, 1 << 20, "fuzz");
  std::vector<const base::TensorSpec*> specs;
  for (const auto& [name, entry] : header.entries) specs.push_back(&entry.spec);
  model::safetensors_header_text(specs, model::StoredType::bf16);
}
void safetensors_index(std::string_view bytes) { model::parse_safetensors_index(bytes, "fuzz"); }
void gguf(std::string_view bytes) {
  const auto data = std::as_bytes(std::span(bytes));
  const auto header = model::parse_gguf(data, "fuzz");
  for (const auto& tensor : header.tensors) {
    model::hugging_face_name(tensor.name);
    const model::GgufType& type = *model::find_gguf_type(tensor.type);
    const uint64_t blocks = tensor.bytes / type.bytes;  // they lie in the file, so they are few
    std::vector<float> values(blocks * type.elements);
    model::dequantise(tensor.type, data.data() + tensor.begin, blocks, values.data());
  }
  read_or_refuse([&] { model::gguf_shape(header, data, "fuzz"); });
  model::gguf_tokenizer(header, "fuzz");
}
void model_config(std::string_view bytes) {
  const config::ModelShape shape = config::parse_model_shape(bytes);
  config::parse_model_shape(config::to_config_json(shape));
  config::describe(shape, 1000);
  config::ModelShape trained = shape;
  trained.score_head = !shape.score_head;
  trained.dtype = "float16";
  const auto exported =
      config::parse_model_shape(config::exported_config_json(std::string(bytes), trained));
  if (exported.dtype != trained.dtype || exported.score_head != trained.score_head) std::abort();
}
void deck(std::string_view bytes) {
  config::Value value;
  config::read_toml_value(bytes, value);  // as an override
  config::dump_deck(config::parse_deck(bytes));
}
void chat_template(std::string_view bytes) {
  const text::Message turns[] = {
      {"system", "be brief", ""},
      {"user", "hello <x>",
       R"({"name":"n","tool_calls":[{"a":1,"b":-2,"c":1.5,"d":true,"e":null}]})"},
      {"assistant", "hi", ""}};
  const text::ChatTemplate made(std::string(bytes), "fuzz");
  const std::map<std::string, std::string> special{{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  read_or_refuse([&] { made.render(turns, text::GenerationPrompt::with, special); });
  const text::TemplateInputs inputs{R"({"tools":[{"name":"f","parts":[1,null]}],"n":1})",
                                    "2026-03-09"};
  made.render(turns, text::GenerationPrompt::continued, special, inputs);
}
// A line of the last turn's text, then the variables.
void template_inputs(std::string_view bytes) {
  static const text::ChatTemplate made(
      "{{ tools | tojson }}{{ documents | tojson }}{{ strftime_now(format) if format }}"
      "{% for m in messages %}{{ m.role }}:{{ m.content }}</s>{% endfor %}",
      "fuzz");
  const size_t end = std::min(bytes.find('\n'), bytes.size());
  const std::string content(bytes.substr(0, end));
  const std::string variables(bytes.substr(std::min(end + 1, bytes.size())));
  text::check_template_variables(variables, "fuzz", ExitCode::bad_data);
  const text::Message turns[] = {{"user", "hello", ""}, {"assistant", content, ""}};
  const text::TemplateInputs inputs{
      text::merged_variables(R"({"tools": [], "format": "%Y"})", variables), "2026-03-09"};
  const auto render = [&](text::GenerationPrompt prompt) {
    return made.render(turns, prompt, {}, inputs);
  };
  const std::string open = render(text::GenerationPrompt::continued);
  require(open.ends_with("assistant:" + content));
  require(render(text::GenerationPrompt::without) == open + "</s>");
}
void tokenizer(std::string_view bytes) {
  text::read_tokenizer_json(text::parse_json(bytes, {"fuzz", 1}), "fuzz");
}

// Bytes as their own tokens, one that ends answers, and a chat template that renders earlier turns
// anew when a later one says "unlike" and refuses those that end with "no".
text::Tokenizer bytes_as_tokens() {
  text::TokenizerParts parts;
  parts.source = "fuzz";
  parts.pre_tokenizer = "gpt-2";
  for (int byte = 0; byte < 256; ++byte)
    text::append_utf8(parts.tokens.emplace_back(), text::byte_to_char(static_cast<uint8_t>(byte)));
  parts.tokens.emplace_back("<s>");
  parts.types.assign(256, 1);
  parts.types.push_back(3);
  parts.eos = 256;
  parts.chat_template =
      "{% if 'unlike' in messages[-1]['content'] %}?{% endif %}{% if messages[-1]['content'] == "
      "'no' %}{{ raise_exception('no') }}{% endif %}"
      "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}{% if m['role'] == 'assistant' "
      "%}{{ eos_token }}{% endif %}\n{% endfor %}"
      "{% if add_generation_prompt %}assistant:{% endif %}";
  return text::Tokenizer::from_parts(parts);
}

// A regular file with these bytes, until the next one is made.
std::string file_of(std::string_view bytes) {
  static const int file = memfd_create("fuzz", 0);
  require(ftruncate(file, 0) == 0 &&
          pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return "/proc/self/fd/" + std::to_string(file);
}

void data_sets(std::string_view bytes) {
  static const text::Tokenizer tokenizer = bytes_as_tokens();
  data::SetOptions lenient, strict;
  lenient.files = strict.files = {file_of(bytes)};
  strict.unusable = data::Unusable::stop;
  strict.prompt_form = data::PromptForm::user_turn;
  strict.max_tokens = 60;
  strict.max_samples = 2;
  strict.system_prompt = "be brief";
  for (const data::SetOptions& options : {lenient, strict}) {
    read_or_refuse([&] {
      const auto set = data::PromptSet::load(options, tokenizer);
      for (int64_t row = 0; row < set.size(); ++row) {
        require(!set[row].ids.empty());
        text::parse_json(set[row].extra, {"fuzz", 1});
        text::parse_json(data::messages_json(set[row].messages), {"fuzz", 1});
      }
    });
    read_or_refuse([&] {
      const auto set = data::SftSet::load(options, tokenizer);
      for (int64_t row = 0; row < set.size(); ++row)
        require(set[row].ids.size() == set[row].loss_mask.size());
    });
    read_or_refuse([&] {
      const auto set = data::PreferenceSet::load(options, tokenizer);
      for (int64_t row = 0; row < set.size(); ++row) {
        require(static_cast<size_t>(set[row].prompt_length) <=
                std::min(set[row].chosen.size(), set[row].rejected.size()));
        require(set[row].chosen.size() == set[row].chosen_mask.size() &&
                set[row].rejected.size() == set[row].rejected_mask.size());
        require(set[row].chosen_mask.back() == 1 && set[row].rejected_mask.back() == 1);
      }
    });
  }
  for (const data::InputRecord& input : data::read_inputs(lenient.files[0]))
    read_or_refuse([&] { input.encode(tokenizer); });
  read_or_refuse([&] {
    for (const data::ScoreInput& input : data::read_score_inputs(lenient.files[0])) {
      read_or_refuse([&] {
        const data::ScoredTokens made = input.tokens(tokenizer);
        require(made.prompt_len <= std::ssize(made.ids));
      });
    }
  });
}
// What the start of a run takes no rule refuses later, whatever the answer.
void labels(std::string_view bytes) {
  static const text::Tokenizer tokenizer = bytes_as_tokens();
  data::SetOptions options;
  options.files = {file_of(bytes)};
  const auto set = data::PromptSet::load(options, tokenizer);
  const std::vector<const data::PromptSet*> sets{&set};
  for (const auto rule : {config::Rule::exact, config::Rule::number, config::Rule::boxed,
                          config::Rule::math, config::Rule::math_verl}) {
    for (const char* key : {"", "answer", "label"}) {
      config::Options deck;
      deck.reward.source.resize(1);
      deck.reward.source[0].rule = rule;
      deck.reward.source[0].label_key = key;
      read_or_refuse([&] {
        reward::check_labels(deck, sets);
        const auto source = reward::make_rule_of(deck, 0);
        std::vector<reward::Request> requests;
        for (int64_t row = 0; row < set.size(); ++row) {
          for (const std::string& answer :
               {std::string(), set[row].label, "\\boxed{" + set[row].label + "}"}) {
            requests.push_back(reward::request_for(set, row));
            requests.back().response = answer;
          }
        }
        try {
          require(source->score(requests).values.size() == requests.size());
        } catch (const UserError&) { std::abort(); }
      });
    }
  }
}
// In pieces of as many bytes as the first one says.
void plugin_answers(std::string_view bytes) {
  std::vector<reward::Request> requests(4);
  for (size_t i = 0; i < requests.size(); ++i)
    requests[i].id = i == 0 ? std::numeric_limits<uint64_t>::max() : i;
  reward::Asked asked("fuzz");
  for (const auto& request : requests) asked.add({&request, 1});
  plugin::Lines lines;
  const auto take = [&](std::string_view line) { asked.accept(line); };
  const size_t piece = bytes.empty() ? 1 : static_cast<uint8_t>(bytes[0]) + size_t{1};
  for (size_t at = 1; at < bytes.size(); at += piece) {
    lines.add(bytes.substr(at, piece), take);
    require(lines.begun().find('\n') == std::string::npos);
  }
  lines.end(take);
  for (const auto& request : requests) {
    if (!asked.settled(request)) asked.give_up(request.id);
  }
  const reward::Scores scores = asked.take(requests);
  require(scores.values.size() == requests.size());
  for (const float value : scores.values) require(std::isfinite(value));
  for (const auto& [name, values] : scores.metrics) {
    for (const float value : values) require(!std::isinf(value));
  }
}
// A turn of the policy in every form of tool calls, and an answer of an environment to it.
void environment_lines(std::string_view bytes) {
  static const std::vector<environment::CallReader> readers = [] {
    std::vector<environment::CallReader> made;
    config::EnvironmentOptions options;
    options.tool_pattern = R"(Action: (?<name>\w+)?\[(?<arguments>.*?)\])";
    for (const auto form :
         {config::ToolCalls::hermes, config::ToolCalls::llama3, config::ToolCalls::regex}) {
      options.tool_calls = form;
      made.emplace_back(options);
    }
    return made;
  }();
  environment::Step step;
  step.text = bytes;
  for (const auto& reader : readers) {
    const environment::ToolCalls calls = reader.read(bytes);
    const auto line = nlohmann::json::parse(
        environment::line_of(1, environment::step_text(step, &calls)), nullptr, false);
    require(!line.is_discarded() && line.at("calls").size() == calls.calls.size());
  }
  environment::AnswerReader answers("fuzz");
  for (const bool reset : {false, true}) {
    read_or_refuse([&] {
      const auto answer = answers.read(bytes, {"a turn", reset, true});
      require(std::isfinite(answer.reply.reward));
      require(reset || answer.reply.done || !answer.reply.text.empty() ||
              !answer.reply.messages.empty());
    });
  }
}
void checkpoint_index(std::string_view bytes) {
  const auto entries = checkpoint::index_from_bytes(bytes, "fuzz");
  require(checkpoint::to_bytes(entries) == bytes);
  for (const auto& entry : entries) require(checkpoint::to_string(entry.type) != nullptr);
  read_or_refuse([&] { checkpoint::metadata_ranges(entries, 1 << 20); });
  for (const auto& entry : entries) checkpoint::check_tiling(entry);
}
void manifest(std::string_view bytes) {
  checkpoint::step_of(std::string(bytes));
  checkpoint::manifest_from_json(bytes, "fuzz");
}
void samples(std::string_view bytes) {
  const Samples read = Samples::from_bytes(bytes);
  require(read.to_bytes() == bytes || bytes.starts_with("TSAMPL02"));  // an earlier form
  read.unscored().sorted();
}
void delta(std::string_view bytes) {
  weightsync::for_each_changed(std::as_bytes(std::span(bytes)), 2, 100000,
                               [](int64_t, const std::byte* value) {
                                 volatile char last = static_cast<char>(value[1]);
                                 (void)last;
                               });
}
void scheduler(std::string_view bytes) {
  for (const char* id : {"SLURM_JOB_ID", "PBS_JOBID"}) {
    for (const int exit_code :
         {0, 1, 127}) {  // and after an error what the environment says is foreign too
      const auto environment = [&](const char* name) -> std::optional<std::string> {
        if (std::strcmp(name, id) == 0) return "7.host";
        const bool of_batch_system =
            std::strncmp(name, id, 3) == 0 && std::strcmp(name, "PBS_NODEFILE") != 0;
        const bool end = std::strstr(name, "END_TIME") != nullptr;  // with it nobody is asked
        return of_batch_system && exit_code != 0 && (!end || exit_code == 127)
                   ? std::optional(std::string(bytes))
                   : std::nullopt;
      };
      const auto ask = [&](const std::vector<std::string>&) {
        base::CommandResult result;
        result.ran = true;
        result.exit_code = exit_code;
        result.output = std::string(bytes);
        return result;
      };
      job::describe(job::read_job(environment, ask, 1.7e9));
    }
  }
  job::pbs_nodes(bytes);
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "SLURM_JOB_ID", "PBS_JOBID", ""}) {
    const auto environment = [&](const char* name) {
      const bool set = std::strcmp(name, variable) == 0 || std::strstr(name, "SIZE") != nullptr;
      return set ? std::optional(std::string(bytes)) : std::nullopt;
    };
    job::describe(job::read_launch(environment));
    job::job_label(environment);
    job::speaks_for_job(environment);
  }
}

// The bytes up to the first 0 are a response, the others a label. Rules of answers end, whatever
// they are given; a number is equal to itself.
void answers(std::string_view bytes) {
  const std::string_view response = bytes.substr(0, bytes.find('\0'));
  const std::string_view label =
      response.size() < bytes.size() ? bytes.substr(response.size() + 1) : response;
  reward::math::equal_by_math_verify(response, label);
  reward::equal_by_verl(response, label);
  const auto number = reward::last_number(response);
  require(number == reward::last_number(response));
  if (const auto whole = reward::whole_number(response)) require(whole == number);
  const auto decimal = base::Decimal::parse(response);
  if (decimal && decimal->digits.size() < 100 && std::abs(decimal->exponent) < 1'000'000) {
    const std::string again = (decimal->negative ? "-." : ".") + decimal->digits + "0e" +
                              std::to_string(decimal->exponent);
    require(base::Decimal::parse(again) == decimal);
    const base::Decimal rounded = decimal->rounded(6);
    require(rounded.rounded(6) == rounded);
  }
}

using Target = void (*)(std::string_view);
const std::map<std::string, Target> targets{{"safetensors_header", safetensors_header},
                                            {"safetensors_index", safetensors_index},
                                            {"gguf", gguf},
                                            {"model_config", model_config},
                                            {"deck", deck},
                                            {"chat_template", chat_template},
                                            {"template_inputs", template_inputs},
                                            {"tokenizer", tokenizer},
                                            {"data_sets", data_sets},
                                            {"labels", labels},
                                            {"plugin_answers", plugin_answers},
                                            {"environment_lines", environment_lines},
                                            {"answers", answers},
                                            {"checkpoint_index", checkpoint_index},
                                            {"manifest", manifest},
                                            {"samples", samples},
                                            {"delta", delta},
                                            {"scheduler", scheduler}};

Target chosen() {
  const char* name = std::getenv("TRIREME_FUZZ");
  const auto found = targets.find(name == nullptr ? "" : name);
  if (found == targets.end()) std::abort();
  return found->second;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Target target = chosen();
  try {
    target(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const UserError&) {}
  return 0;
}
