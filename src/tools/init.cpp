#include "tools/copy_model.hpp"
#include "tools/output.hpp"
#include "trireme/base/log.hpp"
#include "trireme/config/exported_config.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::tools {

ExitCode run_init(const InitCommand& command) {
  const auto spec =
      model::describe(config::load_model_shape(command.shape), model::HeadKind::language);
  OutputFolder output(command.output, {command.shape, command.tokenizer}, existing(command.force));
  copy_model(spec,
             [&](size_t parameter, const base::Block& block, float* out) {
               model::initial_values(spec, parameter, block, command.seed, out);
             },
             output.path(),
             {.type = model::stored_type_of(command.dtype),
              .kept = kept_files(config::config_file(command.shape), command.tokenizer)});
  output.finish();
  log::info(
      base::text(command.output.string(), ": ", config::describe(spec.shape, spec.elements())));
  return ExitCode::done;
}

}  // namespace trireme::tools
