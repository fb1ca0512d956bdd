#include "tools/copy_model.hpp"
#include "trireme/base/log.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::tools {

ExitCode run_init(const InitCommand& command) {
  const auto spec =
      model::describe(config::load_model_shape(command.shape), model::HeadKind::language);
  copy_model(spec,
             [&](size_t parameter, const base::Block& block, float* out) {
               model::initial_values(spec, parameter, block, command.seed, out);
             },
             command.output,
             {.type = model::stored_type_of(command.dtype), .tokenizer_from = command.tokenizer});
  log::info(
      base::text(command.output.string(), ": ", config::describe(spec.shape, spec.elements())));
  return ExitCode::done;
}

}  // namespace trireme::tools
