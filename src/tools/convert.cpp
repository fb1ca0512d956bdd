#include <optional>
#include <vector>

#include "tools/copy_model.hpp"
#include "trireme/base/log.hpp"
#include "trireme/checkpoint/reader.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/driver/progress.hpp"
#include "trireme/model/gguf.hpp"
#include "trireme/text/tokenizer.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::tools {
namespace {

model::ModelExport::Options export_options(const ConvertCommand& command,
                                           const std::filesystem::path& tokenizer_from) {
  return {.type = model::stored_type_of(command.dtype), .tokenizer_from = tokenizer_from};
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

void convert_gguf(const ConvertCommand& command) {
  const model::GgufFile file(command.input);
  const auto parts = tokenizer_parts(file);
  const auto spec = model::describe(file.shape(), model::HeadKind::language);
  model::warn_unexpected(model::check_weights(spec, file), file);
  std::filesystem::create_directories(command.output);
  text::write_tokenizer(parts, command.output);  // first: it refuses what it does not know
  copy_model(
      spec,
      [&](size_t p, const base::Block& block, float* out) {
        model::load_parameter(spec, p, block, file, 0, out);
      },
      command.output, export_options(command, {}));
}

void convert_folder(const ConvertCommand& command) {
  const auto folder = model::open_model(command.input);
  const auto head = folder.shape.score_head ? model::HeadKind::score : model::HeadKind::language;
  const auto spec = model::describe(folder.shape, head);
  model::warn_unexpected(model::check_weights(spec, *folder.weights), *folder.weights);
  copy_model(
      spec,
      [&](size_t p, const base::Block& block, float* out) {
        model::load_parameter(spec, p, block, *folder.weights, 0, out);
      },
      command.output, export_options(command, command.input));
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
std::filesystem::path checkpoint_folder(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / "manifest.json")) return path;
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

void convert_checkpoint(const ConvertCommand& command, const std::filesystem::path& folder) {
  auto part = part_of(command.part);
  checkpoint::Reader reader({}, folder);
  const driver::Progress progress = driver::progress_from_json(reader.state());
  if (progress.command == "rm")
    part.head = model::HeadKind::score;  // what it trains is a reward model
  std::filesystem::path model = command.config;
  if (model.empty()) {
    const auto options = config::parse_deck(progress.deck, "the checkpoint's deck");
    model = options.model.path.empty() ? options.model.shape : options.model.path;
  }
  const auto spec = model::describe(config::load_model_shape(model), part.head);
  VALIDATE(reader.find(part.prefix + spec.parameters.front().spec.name), ExitCode::bad_data,
           folder.string(), " has no ", command.part, " (", part.prefix,
           spec.parameters.front().spec.name, " is not in it)");
  copy_model(
      spec,
      [&](size_t p, const base::Block& block, float* out) {
        const auto& tensor = spec.parameters[p].spec;
        const std::vector<checkpoint::ReadRequest> requests{
            {part.prefix + tensor.name, tensor.shape, comm::DType::f32, block, out}};
        reader.read(requests);
      },
      command.output,
      export_options(command,
                     std::filesystem::is_directory(model) ? model : std::filesystem::path{}));
}

}  // namespace

ExitCode run_convert(const ConvertCommand& command) {
  VALIDATE(std::filesystem::exists(command.input), ExitCode::input_missing, command.input.string(),
           " does not exist: check the path");
  const auto checkpoint = checkpoint_folder(command.input);
  if (!checkpoint.empty()) {
    convert_checkpoint(command, checkpoint);
  } else if (command.input.extension() == ".gguf") {
    convert_gguf(command);
  } else {
    convert_folder(command);
  }
  log::info(base::text("wrote ", command.output.string()));
  return ExitCode::done;
}

}  // namespace trireme::tools
