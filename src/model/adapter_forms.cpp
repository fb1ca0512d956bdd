// The deck's adapter, and a model with an adapter in its other forms.
#include <algorithm>
#include <utility>

#include "trireme/base/text.hpp"
#include "trireme/config/options.hpp"
#include "trireme/model/adapter.hpp"
#include "trireme/model/spec.hpp"

namespace trireme::model {

Adapter adapter_of(const config::LoraOptions& options) {
  Adapter adapter;
  adapter.rank = options.rank;
  adapter.alpha = options.alpha;
  adapter.rslora = options.rslora;
  adapter.dropout = options.dropout;
  adapter.targets = options.targets;
  adapter.modules_to_save = options.modules_to_save;
  return adapter;
}

bool selects_adapters(const ModelSpec& spec) {
  return std::ranges::any_of(spec.stages, [](const Stage& stage) {
    return std::ranges::any_of(stage.operations, [](const Operation& operation) {
      return std::holds_alternative<Select>(operation);
    });
  });
}

std::string numbered(std::string parameter, unsigned adapter) {
  const size_t at = parameter.find('.', parameter.find(".lora_") + 1);
  return parameter.insert(std::min(at, parameter.size()), base::text(".", adapter));
}

ModelSpec without_dropout(const ModelSpec& spec) {
  if (!spec.adapter || spec.adapter->dropout == 0) return spec;
  Adapter adapter = *spec.adapter;
  adapter.dropout = 0;
  return with_adapter(without_adapter(spec), adapter, "the adapter");
}

ModelSpec without_adapter(const ModelSpec& spec) {
  ModelSpec out = describe(spec.shape, spec.head);
  out.head_type = spec.head_type;
  return out;
}

std::string module_of(const std::string& parameter) {
  return parameter.substr(0, parameter.rfind('.'));
}

}  // namespace trireme::model
