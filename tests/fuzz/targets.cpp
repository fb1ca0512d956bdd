// libFuzzer targets for everything that reads text or bytes of others. One program: TRIREME_FUZZ names the target. A refusal (UserError) is a good
// end; another exception, a report of ASan or UBSan, a time-out or too much memory is a finding.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/index.hpp"
#include "checkpoint/manifest.hpp"
#include "config/value.hpp"
#include "model/gguf_parser.hpp"
#include "model/safetensors_header.hpp"
#include "text/tokenizer_files.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/samples.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/config/model_shape.hpp"
#include "trireme/job/facts.hpp"
#include "trireme/text/chat_template.hpp"
#include "trireme/text/json_text.hpp"
#include "weightsync/delta_stream.hpp"

// All that the index needs of comm, which would bring MPI with it.
size_t trireme::comm::size_of(DType type) { return type == DType::u8 ? 1 : type == DType::bf16 ? 2 : type == DType::i32 || type == DType::f32 ? 4 : 8; }

namespace {

using namespace trireme;

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
  try {
    model::gguf_shape(header, data, "fuzz");
  } catch (const UserError&) {
  }
  model::gguf_tokenizer(header, "fuzz");
}
void model_config(std::string_view bytes) {
  const config::ModelShape shape = config::parse_model_shape(bytes);
  config::parse_model_shape(config::to_config_json(shape));
  config::describe(shape, 1000);
}
void deck(std::string_view bytes) {
  config::Value value;
  config::read_toml_value(bytes, value);  // as an override
  config::dump_deck(config::parse_deck(bytes));
}
void chat_template(std::string_view bytes) {
  const text::Message turns[] = {{"system", "be brief", ""},
                                 {"user", "hello <x>", R"({"name":"n","tool_calls":[{"a":1,"b":-2,"c":1.5,"d":true,"e":null}]})"},
                                 {"assistant", "hi", ""}};
  const text::ChatTemplate made(std::string(bytes), "fuzz");
  made.render(turns, text::GenerationPrompt::with, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
}
void tokenizer(std::string_view bytes) { text::read_tokenizer_json(text::parse_json(bytes, {"fuzz", 1}), "fuzz"); }
void checkpoint_index(std::string_view bytes) {
  const auto entries = checkpoint::index_from_bytes(bytes, "fuzz");
  if (checkpoint::to_bytes(entries) != bytes) std::abort();
  for (const auto& entry : entries) {
    if (checkpoint::to_string(entry.type) == nullptr) std::abort();
  }
  try {
    checkpoint::metadata_ranges(entries, 1 << 20);
  } catch (const UserError&) {
  }
  for (const auto& entry : entries) checkpoint::check_tiling(entry);
}
void manifest(std::string_view bytes) {
  checkpoint::step_of(std::string(bytes));
  checkpoint::manifest_from_json(bytes, "fuzz");
}
void samples(std::string_view bytes) {
  const Samples read = Samples::from_bytes(bytes);
  if (read.to_bytes() != bytes) std::abort();
  read.unscored().sorted();
}
void delta(std::string_view bytes) {
  weightsync::for_each_changed(std::as_bytes(std::span(bytes)), 2, 100000, [](int64_t, const std::byte* value) {
    volatile char last = static_cast<char>(value[1]);
    (void)last;
  });
}
void scheduler(std::string_view bytes) {
  for (const char* id : {"SLURM_JOB_ID", "PBS_JOBID"}) {
    for (const int exit_code : {0, 1, 127}) {  // and after an error what the environment says is foreign too
      const auto environment = [&](const char* name) -> std::optional<std::string> {
        if (std::strcmp(name, id) == 0) return "7.host";
        const bool of_batch_system = std::strncmp(name, id, 3) == 0 && std::strcmp(name, "PBS_NODEFILE") != 0;
        const bool end = std::strstr(name, "END_TIME") != nullptr;  // with it nobody is asked
        return of_batch_system && exit_code != 0 && (!end || exit_code == 127) ? std::optional(std::string(bytes)) : std::nullopt;
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

using Target = void (*)(std::string_view);
const std::map<std::string, Target> targets{{"safetensors_header", safetensors_header},
                                            {"safetensors_index", safetensors_index},
                                            {"gguf", gguf},
                                            {"model_config", model_config},
                                            {"deck", deck},
                                            {"chat_template", chat_template},
                                            {"tokenizer", tokenizer},
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
  } catch (const UserError&) {
  }
  return 0;
}
