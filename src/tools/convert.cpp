#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/copy_model.hpp"
#include "tools/job_record.hpp"
#include "trireme/base/log.hpp"
#include "trireme/checkpoint/reader.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/config/exported_config.hpp"
#include "trireme/driver/run_state.hpp"
#include "trireme/learn/file_digest.hpp"
#include "trireme/learn/inputs.hpp"
#include "trireme/learn/model_start.hpp"
#include "trireme/model/adapter_files.hpp"
#include "trireme/model/gguf.hpp"
#include "trireme/text/tokenizer.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

model::ModelExport::Options export_options(const ConvertCommand& command,
                                           std::shared_ptr<const model::KeptFiles> kept) {
  return {.type = model::stored_type_of(command.dtype), .kept = std::move(kept)};
}

text::TokenizerParts tokenizer_parts(const model::GgufFile& file) {
  const auto& from = file.tokenizer();
  text::TokenizerParts parts;
  parts.source = file.describe();
  parts.model = from.model;
  parts.pre_tokenizer = from.pre;
  parts.tokens = from.tokens;
  parts.merges = from.merges;
  parts.types = from.types;
  parts.bos = from.bos;
  parts.eos = from.eos;
  parts.pad = from.pad;
  parts.unk = from.unknown;
  parts.add_bos = from.add_bos;
  parts.add_eos = from.add_eos;
  parts.chat_template = from.chat_template;
  return parts;
}

// The model to convert, and where its small files are: inputs, which are not written over, and what
// says whether an output that is there is of the same job.
struct Source {
  ToolJob job;
  InputPaths inputs;
};
Source source_of_model(const ConvertCommand& command) {
  return {{{"input", base::text(learn::digest_of_model(command.input), " ",
                                learn::digest_of_descriptions(command.input))}},
          {command.input}};
}

// Writes the folder unless it is there already.
void write_model(const ConvertCommand& command, Source source,
                 const std::function<void(const fs::path& folder)>& write) {
  source.job.emplace_back("dtype", config::to_string(command.dtype));
  check_output_folder(command.output, source.inputs, Existing::replaced);
  if (is_done(command.output, source.job, existing(command.force))) return;
  OutputFolder output(command.output, source.inputs, existing(command.force));
  write(output.path());
  output.finish(source.job);
  log::info(base::text("wrote ", command.output.string()));
}

void convert_gguf(const ConvertCommand& command, const model::GgufFile& file) {
  const auto parts = tokenizer_parts(file);
  const auto spec = model::describe(file.shape(), model::HeadKind::language);
  model::warn_unexpected(model::check_weights(spec, file), file);
  write_model(command, source_of_model(command), [&](const fs::path& folder) {
    text::write_tokenizer(parts, folder);  // first: it refuses what it does not know
    copy_model(
        spec,
        [&](size_t p, const base::Block& block, float* out) {
          model::load_parameter(spec, p, block, file, 0, out);
        },
        folder,
        export_options(command,
                       fs::is_directory(command.input) ? kept_files(command.input, {}) : nullptr));
  });
}

void convert_model(const ConvertCommand& command, const model::ModelFolder& folder,
                   const fs::path& described, Source source) {
  const auto head = folder.shape.score_head ? model::HeadKind::score : model::HeadKind::language;
  const auto spec = model::describe_and_check(folder, head);
  write_model(command, std::move(source), [&](const fs::path& output) {
    copy_model(
        spec,
        [&](size_t p, const base::Block& block, float* out) {
          model::load_parameter(spec, p, block, *folder.weights, 0, out);
        },
        output, export_options(command, kept_files(described, {})));
  });
}

void convert_folder(const ConvertCommand& command) {
  const auto folder = model::open_model(command.input);
  if (const auto* gguf = dynamic_cast<const model::GgufFile*>(folder.weights.get()))
    return convert_gguf(command, *gguf);
  convert_model(command, folder, command.input, source_of_model(command));
}

// An adapter and its base.
void convert_adapter(const ConvertCommand& command) {
  VALIDATE(command.merge, ExitCode::usage, command.input.string(),
           " is an adapter, which a model folder cannot hold by itself: --merge adds it to its "
           "base");
  const fs::path base =
      command.base.empty() ? model::base_folder(model::open_adapter(command.input)) : command.base;
  Source source = source_of_model(command);
  source.job.emplace_back(
      "base", base::text(learn::digest_of_model(base), " ", learn::digest_of_descriptions(base)));
  source.inputs.push_back(base);
  convert_model(command, model::open_merged(command.input, base), base, std::move(source));
}

// The part of a checkpoint that is asked for: where its tensors lie and what head it has.
struct CheckpointPart {
  std::string prefix;
  model::HeadKind head;
};
CheckpointPart part_of(const std::string& name) {
  if (name == "actor") return {"/actor/weight/", model::HeadKind::language};
  if (name == "ema") return {"/actor/ema/", model::HeadKind::language};
  if (name == "critic") return {"/critic/weight/", model::HeadKind::score};
  throw UserError(ExitCode::usage, base::text("--part ", name, ": choose actor, ema or critic"));
}

// One step of a folder of checkpoints, or a checkpoint itself.
fs::path checkpoint_folder(const fs::path& path) {
  if (fs::exists(path / "manifest.json")) return path;
  for (const auto& folder : {path, path / "ckpt"}) {
    // The latest save, as a restart would take it; a step that a run has left behind may have a
    // greater number.
    const auto whole = checkpoint::list_committed(folder);
    if (!whole.empty()) return folder / checkpoint::folder_name(whole.front().step);
    const auto steps = checkpoint::list_steps(folder);
    if (!steps.empty())
      return folder /
             checkpoint::folder_name(steps.front());  // reading it says what is wrong with it
  }
  return {};
}

// Where the config.json and the small files of a checkpoint's model are, and what says so.
struct ModelSource {
  fs::path model, tokenizer;
  std::string key, tokenizer_key;
};
ModelSource source_of(const ConvertCommand& command, const std::string& deck) {
  if (!command.config.empty()) return {command.config, {}, "--model-config", ""};
  const auto options = config::parse_deck(deck, "the checkpoint's deck");
  const std::string critic = command.part == "critic" ? learn::critic_path(options).path : "";
  ModelSource source{options.model.path, options.tokenizer_path(),
                     "model.path of the checkpoint's deck",
                     "model.tokenizer of the checkpoint's deck"};
  if (options.model.tokenizer.empty()) source.tokenizer_key = source.key;
  if (!critic.empty() && critic != options.model.path) {
    source.model = critic;
    source.key = base::text(
        options.critic.path.empty() ? "the path of the first reward model" : "critic.path",
        " of the checkpoint's deck");
  } else if (options.model.path.empty()) {
    source.model = config::config_file(options.model.shape);
    source.key = "model.shape of the checkpoint's deck";
  }
  return source;
}

// A checkpoint may be converted in another folder than that in which its run was started, and its
// model may have moved.
void require_there(const fs::path& path, const std::string& key, const fs::path& checkpoint) {
  std::error_code error;
  const bool there = fs::exists(path, error);
  const bool good = fs::is_directory(path, error) ? fs::exists(path / "config.json", error)
                                                  : fs::is_regular_file(path, error);
  VALIDATE(good, ExitCode::input_missing, checkpoint.string(), ": ", key, " is ", path.string(),
           there ? ", which has no config.json" : ", which is not there",
           path.is_relative() && key.front() != '-'
               ? " (it counts from the folder in which the run was started)"
               : "",
           ": give the folder that has config.json and tokenizer of this model as --model-config");
}

config::ModelShape shape_of(const fs::path& path) {
  return path.extension() == ".gguf" ? model::GgufFile(path).shape()
                                     : config::load_model_shape(path);
}

// Frozen parameters are not in a checkpoint: they are those of the model that its run started from,
// which must be here with the weights that it had then. Nothing where the run froze none.
std::optional<learn::ModelStart> start_of_frozen(const driver::RunState& run,
                                                 const CheckpointPart& part,
                                                 const ModelSource& source,
                                                 const fs::path& checkpoint) {
  const auto options = config::parse_deck(run.deck, "the checkpoint's deck");
  const bool critic = part.prefix.starts_with("/critic/");
  const config::LoraOptions& lora = critic ? options.critic.lora : options.actor.lora;
  const bool adapts = lora.wanted();
  if (!adapts && (critic ? options.critic.freeze : options.actor.freeze).empty())
    return std::nullopt;
  const std::string path = critic ? learn::critic_path(options).path : options.model.path;
  const auto adapted = [&](const model::ModelSpec& base) {
    return model::adapted(base, lora, path.empty() ? options.model.shape : path,
                          critic ? "critic.lora" : "actor.lora");
  };
  const auto seed = static_cast<uint64_t>(options.run.seed);
  if (path.empty())
    return learn::ModelStart{adapted(model::describe(shape_of(source.model), part.head)), nullptr,
                             seed};
  const auto saved =
      std::ranges::find(run.inputs, critic ? learn::frozen_of_critic : learn::frozen_of_actor,
                        &learn::Inputs::value_type::first);
  VALIDATE(saved != run.inputs.end() && saved->second == learn::digest_of_model(source.model),
           ExitCode::bad_data, checkpoint.string(),
           " does not hold the parameters that its run froze, and the weights in ",
           source.model.string(), " (", source.key,
           ") are not those that the run started from: give their folder as --model-config");
  const auto folder = model::open_model(source.model);
  const auto allowed =
      part.head == model::HeadKind::score ? model::Missing::score_head : model::Missing::nothing;
  learn::ModelStart start{adapted(model::describe_and_check(folder, part.head, allowed)),
                          folder.weights, critic ? seed + 1 : seed};
  if (adapts) start.weights = model::adapted_weights(start.spec, start.weights, nullptr);
  return start;
}

// The tensors of a checkpoint and its base together, from which an adapter is merged: as model
// files have them, fused weights whole.
class CheckpointWeights final : public model::WeightSource {
 public:
  CheckpointWeights(const model::ModelSpec& spec, ReadBlock read, std::string where)
      : spec_(spec), read_(std::move(read)), where_(std::move(where)) {
    for (size_t p = 0; p < spec.parameters.size(); ++p)
      places_[spec.parameters[p].file_tensor().name].push_back(p);
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (const auto& [name, p] : places_) out.push_back(name);
    return out;
  }
  bool contains(std::string_view name) const override {
    return places_.find(name) != places_.end();
  }
  const base::TensorSpec& spec(std::string_view name) const override {
    return spec_.parameters[parts(name).front()].file_tensor();
  }
  std::string_view type_name(std::string_view) const override { return "F32"; }
  void read(std::string_view name, const base::Block& block, float* out) const override {
    for (const size_t p : parts(name)) {
      const model::Parameter& part = spec_.parameters[p];
      const int64_t first = part.stored ? part.stored->first_row : 0;
      const int64_t begin = std::max(block.row, first);
      const int64_t end = std::min(block.row + block.rows, first + part.spec.rows());
      if (begin >= end) continue;
      read_(p, {begin - first, end - begin, block.column, block.columns},
            out + (begin - block.row) * block.columns);
    }
  }
  std::string describe() const override { return where_; }

 private:
  const std::vector<size_t>& parts(std::string_view name) const {
    const auto found = places_.find(name);
    VALIDATE(found != places_.end(), ExitCode::bad_data, where_, " has no tensor '", name, "'");
    return found->second;
  }
  const model::ModelSpec& spec_;
  ReadBlock read_;
  std::string where_;
  std::map<std::string, std::vector<size_t>, std::less<>> places_;
};

void convert_checkpoint(const ConvertCommand& command, const fs::path& folder) {
  auto part = part_of(command.part);
  checkpoint::Reader reader({}, folder);
  const driver::RunState state = driver::run_state_from_json(reader.state());
  if (state.command == "rm") part.head = model::HeadKind::score;  // it trains a reward model
  const ModelSource source = source_of(command, state.deck);
  require_there(source.model, source.key, folder);
  std::error_code error;
  VALIDATE(source.tokenizer.empty() || fs::is_directory(source.tokenizer, error),
           ExitCode::input_missing, folder.string(), ": ", source.tokenizer_key, " is ",
           source.tokenizer.string(),
           ", which is not there: give the folder that has config.json and tokenizer of this model "
           "as --model-config");
  auto shape = shape_of(source.model);
  if (reader.find(part.prefix + "lm_head.weight")) shape.tied = false;  // trained apart
  const auto frozen = start_of_frozen(state, part, source, folder);
  const zero::ReadRows read_frozen = frozen ? frozen->reader() : zero::ReadRows{};
  const auto spec = frozen ? frozen->spec : model::describe(shape, part.head);
  const auto stored = [&](const model::Parameter& parameter) {
    return reader.find(part.prefix + parameter.spec.name) != nullptr;
  };
  VALIDATE(std::ranges::any_of(spec.parameters, stored), ExitCode::bad_data, folder.string(),
           " has no ", command.part, " (nothing in it begins with ", part.prefix, ")");
  const ToolJob job{{"input", learn::digest_of_file(folder / "manifest.json")},
                    {"part", command.part},
                    {"merge", command.merge ? "yes" : "no"},
                    {"model-config", learn::digest_of_descriptions(source.model)},
                    {"tokenizer", learn::digest_of_descriptions(source.tokenizer)}};
  const InputPaths inputs{command.input, folder, source.model, source.tokenizer};
  VALIDATE(!command.merge || spec.adapter, ExitCode::usage, "--merge: the ", command.part, " of ",
           folder.string(), " has no adapter: leave it out");
  const ReadBlock read = [&](size_t p, const base::Block& block, float* out) {
    const auto& tensor = spec.parameters[p].spec;
    if (frozen && !stored(spec.parameters[p])) return read_frozen(p, block, out);
    const std::vector<checkpoint::ReadRequest> requests{
        {part.prefix + tensor.name, tensor.shape, comm::DType::f32, block, out}};
    reader.read(requests);
  };
  write_model(command, {job, inputs}, [&](const fs::path& output) {
    const auto options = export_options(command, kept_files(source.model, source.tokenizer));
    if (!command.merge) return copy_model(spec, read, output, options);
    const model::ModelSpec whole = model::without_adapter(spec);
    const auto merged = model::merged_weights(
        spec, std::make_shared<CheckpointWeights>(spec, read, folder.string()));
    copy_model(
        whole,
        [&](size_t p, const base::Block& block, float* out) {
          model::load_parameter(whole, p, block, *merged, 0, out);
        },
        output, options);
  });
}

}  // namespace

ExitCode run_convert(const ConvertCommand& command) {
  VALIDATE(fs::exists(command.input), ExitCode::input_missing, command.input.string(),
           " does not exist: check the path");
  const auto checkpoint = checkpoint_folder(command.input);
  if (!checkpoint.empty()) {
    convert_checkpoint(command, checkpoint);
  } else if (command.input.extension() == ".gguf") {
    convert_gguf(command, model::GgufFile(command.input));
  } else if (model::is_adapter(command.input)) {
    convert_adapter(command);
  } else {
    VALIDATE(!command.merge, ExitCode::usage, "--merge: ", command.input.string(),
             " is not an adapter (it has no ", model::adapter_config_name,
             "): give an adapter's folder");
    convert_folder(command);
  }
  return ExitCode::done;
}

}  // namespace trireme::tools
