#include "tools/copy_model.hpp"
#include "tools/job_record.hpp"
#include "trireme/base/log.hpp"
#include "trireme/config/exported_config.hpp"
#include "trireme/learn/file_digest.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::tools {

ExitCode run_init(const InitCommand& command) {
  const InputPaths inputs{command.shape, command.tokenizer};
  check_output_folder(command.output, inputs, Existing::replaced);
  const auto spec =
      model::describe(config::load_model_shape(command.shape), model::HeadKind::language);
  const ToolJob job{
      {"shape", learn::digest_of_descriptions(command.shape)},
      {"tokenizer",
       command.tokenizer.empty() ? "" : learn::digest_of_descriptions(command.tokenizer)},
      {"seed", base::text(command.seed)},
      {"dtype", std::string(config::to_string(command.dtype))}};
  if (is_done(command.output, job, existing(command.force))) return ExitCode::done;
  OutputFolder output(command.output, inputs, existing(command.force));
  copy_model(spec,
             [&](size_t parameter, const base::Block& block, float* out) {
               model::initial_values(spec, parameter, block, command.seed, out);
             },
             output.path(),
             {.type = model::stored_type_of(command.dtype),
              .kept = kept_files(config::config_file(command.shape), command.tokenizer)});
  output.finish(job);
  log::info(
      base::text(command.output.string(), ": ", config::describe(spec.shape, spec.elements())));
  return ExitCode::done;
}

}  // namespace trireme::tools
