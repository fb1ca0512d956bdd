// Weights of adapted and of merged models.
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/model/adapter_files.hpp"

namespace trireme::model {
namespace fs = std::filesystem;

namespace {

// Where each parameter of an adapted model is read.
class AdaptedWeights final : public WeightSource {
 public:
  // Several adapters have numbered() parameters.
  AdaptedWeights(const ModelSpec& spec, std::shared_ptr<const WeightSource> base,
                 std::span<const AdapterFolder> adapters, bool several)
      : base_(std::move(base)), several_(several) {
    for (const std::string& name : base_->names()) add(name, *base_, name);
    for (const Parameter& parameter : spec.parameters) {
      if (part_of(parameter.role) != Part::saved) continue;
      const std::string& name = parameter.file_tensor().name;
      std::string plain = name;
      plain.erase(plain.find(saved_mark), saved_mark.size());
      if (base_->contains(plain)) add(name, *base_, plain);
    }
    for (const AdapterFolder& adapter : adapters) add_adapter(spec, adapter);
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (const auto& [name, place] : places_) out.push_back(name);
    return out;
  }
  bool contains(std::string_view name) const override {
    return places_.find(name) != places_.end();
  }
  const base::TensorSpec& spec(std::string_view name) const override { return place(name).spec; }
  std::string_view type_name(std::string_view name) const override {
    const Place& at = place(name);
    return at.source->type_name(at.name);
  }
  void read(std::string_view name, const base::Block& block, float* out) const override {
    const Place& at = place(name);
    at.source->read(at.name, block, out);
  }
  bool copy(std::string_view name, const base::Block& block, StoredType type,
            std::byte* out) const override {
    const auto found = places_.find(name);
    return found != places_.end() &&
           found->second.source->copy(found->second.name, block, type, out);
  }
  std::string describe() const override {
    std::vector<std::string> parts{base_->describe()};
    for (const auto& adapter : adapters_) parts.push_back(adapter->describe());
    return base::join(parts, " with ");
  }

  // The name that a stored tensor has here.
  static std::string name_of(std::string stored, const std::set<std::string>& saved) {
    if (stored.starts_with(adapter_prefix)) stored.erase(0, adapter_prefix.size());
    constexpr std::string_view wrapped = ".base_layer.";
    if (const size_t at = stored.find(wrapped); at != std::string::npos)
      stored.replace(at, wrapped.size(), ".");
    const size_t dot = stored.rfind('.');
    std::string of_saved = stored;
    if (dot != std::string::npos) of_saved.insert(dot, saved_mark);
    return saved.contains(of_saved) ? of_saved : stored;
  }

 private:
  struct Place {
    const WeightSource* source;
    std::string name;
    base::TensorSpec spec;
  };
  void add(const std::string& name, const WeightSource& source, const std::string& stored) {
    base::TensorSpec spec = source.spec(stored);
    spec.name = name;
    places_.insert_or_assign(name, Place{&source, stored, std::move(spec)});
  }
  const Place& place(std::string_view name) const {
    const auto found = places_.find(name);
    VALIDATE(found != places_.end(), ExitCode::bad_data, describe(), " has no tensor '", name, "'");
    return found->second;
  }

  void add_adapter(const ModelSpec& spec, const AdapterFolder& adapter) {
    const fs::path& folder = adapter.path;
    const auto number = static_cast<unsigned>(adapters_.size());
    adapters_.push_back(adapter.weights);
    std::map<std::string, const base::TensorSpec*, std::less<>> known;
    std::set<std::string> saved, missing;
    for (const Parameter& parameter : spec.parameters) {
      const base::TensorSpec& tensor = parameter.file_tensor();
      known.emplace(tensor.name, &tensor);
      if (part_of(parameter.role) == Part::saved) saved.insert(tensor.name);
      if (part_of(parameter.role) != Part::base && adapter_of_role(parameter.role) == number)
        missing.insert(tensor.name);
    }
    for (const std::string& stored : adapter.weights->names()) {
      std::string name = name_of(stored, saved);
      VALIDATE(!several_ || name.find(".lora_") != std::string::npos, ExitCode::bad_data,
               folder.string(), ": '", stored,
               "' takes the place of a weight of the base (several adapters in one batch share "
               "it): give this adapter a run of its own");
      if (several_) name = numbered(std::move(name), number);
      const auto found = known.find(name);
      VALIDATE(found != known.end(), ExitCode::bad_data, folder.string(), ": '", stored,
               "' does not belong to the model with this adapter (another base, or another "
               "adapter_config.json): name the model that the adapter was trained on");
      const auto &have = adapter.weights->spec(stored).shape, &want = found->second->shape;
      VALIDATE(have == want, ExitCode::bad_data, folder.string(), ": '", stored, "' has the shape ",
               base::shape_text(have), ", but the model with this adapter has ",
               base::shape_text(want),
               " (another base, or another adapter_config.json): name the model that the adapter "
               "was trained on");
      missing.erase(name);
      add(name, *adapter.weights, stored);
    }
    VALIDATE(missing.empty(), ExitCode::bad_data, folder.string(), " has no ", *missing.begin(),
             missing.size() > 1 ? base::text(" (and ", missing.size() - 1, " more)") : "",
             ", which its adapter_config.json asks for on this model: name the model that the "
             "adapter was trained on");
  }

  std::shared_ptr<const WeightSource> base_;
  std::vector<std::shared_ptr<const WeightSource>> adapters_;
  bool several_;
  std::map<std::string, Place, std::less<>> places_;
};

// The sums of base and adapter, under the base's names.
class MergedWeights final : public WeightSource {
 public:
  MergedWeights(const ModelSpec& spec, std::shared_ptr<const WeightSource> source)
      : source_(std::move(source)) {
    for (const Stage& stage : spec.stages) {
      for (const size_t p : stage.parameters) add(spec, stage, spec.parameters[p]);
    }
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (const auto& [name, sum] : sums_) out.push_back(name);
    return out;
  }
  bool contains(std::string_view name) const override { return sums_.find(name) != sums_.end(); }
  const base::TensorSpec& spec(std::string_view name) const override { return sum(name).spec; }
  std::string_view type_name(std::string_view name) const override {
    return source_->type_name(sum(name).base);
  }
  void read(std::string_view name, const base::Block& block, float* out) const override {
    const Sum& of = sum(name);
    source_->read(of.base, block, out);
    if (!of.a.empty()) add_product(of, block, out);
  }
  bool copy(std::string_view name, const base::Block& block, StoredType type,
            std::byte* out) const override {
    const auto found = sums_.find(name);
    return found != sums_.end() && found->second.a.empty() &&
           source_->copy(found->second.base, block, type, out);
  }
  std::string describe() const override { return source_->describe(); }

 private:
  struct Sum {
    base::TensorSpec spec;
    std::string base, a, b;  // tensors of the source; no a: nothing is added
    double scale = 0;
    bool transposed = false;  // of an embedding: W + scale (B A)^T
  };
  const Sum& sum(std::string_view name) const {
    const auto found = sums_.find(name);
    VALIDATE(found != sums_.end(), ExitCode::bad_data, describe(), " has no tensor '", name, "'");
    return found->second;
  }

  void add(const ModelSpec& spec, const Stage& stage, const Parameter& parameter) {
    if (part_of(parameter.role) != Part::base) return;
    const auto find = [&](Role role) -> const Parameter* {
      for (const size_t p : stage.parameters) {
        if (spec.parameters[p].role == role) return &spec.parameters[p];
      }
      return nullptr;
    };
    const base::TensorSpec& tensor = parameter.file_tensor();
    Sum entry{.spec = tensor, .base = tensor.name, .a = {}, .b = {}};
    if (const Parameter* saved = find(adapter_role(parameter.role, Part::saved)))
      entry.base = saved->file_tensor().name;
    const Parameter* b = find(adapter_role(parameter.role, Part::lora_b));
    if (b != nullptr) {
      const std::string module = module_of(tensor.name);
      entry.a = module_a(spec, stage, module).name;
      entry.b = b->file_tensor().name;
      entry.scale = spec.adapter->scale_of(module);
      entry.transposed = parameter.role == Role::embedding;
    }
    sums_.emplace(tensor.name, std::move(entry));  // a tied one, and a fused one, is known already
  }
  // A of a module, which is one also where several parameters are its weight.
  static const base::TensorSpec& module_a(const ModelSpec& spec, const Stage& stage,
                                          const std::string& module) {
    for (const size_t p : stage.parameters) {
      const Parameter& parameter = spec.parameters[p];
      if (part_of(parameter.role) == Part::lora_a && parameter.spec.name.starts_with(module + "."))
        return parameter.spec;
    }
    throw InternalError("an adapter without its A: " + module);
  }

  void add_product(const Sum& of, const base::Block& block, float* out) const {
    const base::Block outputs = of.transposed ? base::Block{block.column, block.columns, 0, 0}
                                              : base::Block{block.row, block.rows, 0, 0},
                      inputs = of.transposed ? base::Block{block.row, block.rows, 0, 0}
                                             : base::Block{block.column, block.columns, 0, 0};
    const int64_t rank = source_->spec(of.a).rows();
    std::vector<float> a(static_cast<size_t>(rank * inputs.rows)),
        b(static_cast<size_t>(outputs.rows * rank));
    source_->read(of.a, {0, rank, inputs.row, inputs.rows}, a.data());
    source_->read(of.b, {outputs.row, outputs.rows, 0, rank}, b.data());
    for (int64_t row = 0; row < block.rows; ++row) {
      for (int64_t column = 0; column < block.columns; ++column) {
        const int64_t o = of.transposed ? column : row, i = of.transposed ? row : column;
        double product = 0;
        for (int64_t k = 0; k < rank; ++k)
          product += double{b[static_cast<size_t>(o * rank + k)]} *
                     double{a[static_cast<size_t>(k * inputs.rows + i)]};
        float& value = out[row * block.columns + column];
        value = static_cast<float>(double{value} + of.scale * product);
      }
    }
  }

  std::shared_ptr<const WeightSource> source_;
  std::map<std::string, Sum, std::less<>> sums_;
};

}  // namespace

fs::path base_folder(const AdapterFolder& adapter) {
  std::error_code error;
  const std::string& base = adapter.adapter.base;
  for (const fs::path& path : {fs::path(base), adapter.path / base}) {
    if (!base.empty() && fs::exists(path, error)) return path;
  }
  throw UserError(ExitCode::input_missing,
                  base::text(adapter.path.string(), ": its base model \"", base,
                             "\" (base_model_name_or_path of ", adapter_config_name,
                             ") is not a folder here: download it, and write its folder there"));
}

fs::path tokenizer_folder(const fs::path& model) {
  std::error_code error;
  const bool own = fs::exists(model / "tokenizer.json", error);
  return own || !is_adapter(model) ? model : base_folder(open_adapter(model));
}

std::shared_ptr<const WeightSource> adapted_weights(const ModelSpec& spec,
                                                    std::shared_ptr<const WeightSource> base,
                                                    const AdapterFolder* adapter) {
  const size_t count = adapter != nullptr ? 1 : 0;
  return std::make_shared<AdaptedWeights>(spec, std::move(base), std::span(adapter, count), false);
}

std::shared_ptr<const WeightSource> merged_weights(const ModelSpec& spec,
                                                   std::shared_ptr<const WeightSource> source) {
  return std::make_shared<MergedWeights>(spec, std::move(source));
}

AdaptedModel open_adapted(const fs::path& model, const fs::path& adapter, config::AdapterForm form,
                          HeadKind head) {
  const ModelFolder folder = open_model(model);
  AdaptedModel out{describe_and_check(folder, head), folder.weights};
  if (adapter.empty()) return out;
  const AdapterFolder of = open_adapter(adapter);
  out.spec = with_adapter(out.spec, of.adapter, adapter.string());
  out.weights = adapted_weights(out.spec, out.weights, &of);
  if (form == config::AdapterForm::apart) {
    out.spec = without_dropout(out.spec);
    return out;
  }
  if (form == config::AdapterForm::merged) out.weights = merged_weights(out.spec, out.weights);
  out.spec = without_adapter(out.spec);
  return out;
}

AdaptedModel open_with_adapters(const fs::path& model, std::span<const fs::path> adapters,
                                HeadKind head) {
  const ModelFolder folder = open_model(model);
  std::vector<AdapterFolder> opened;
  std::vector<NamedAdapter> named;
  for (const fs::path& path : adapters) {
    opened.push_back(open_adapter(path));
    named.push_back({opened.back().adapter, path.string()});
  }
  AdaptedModel out{with_adapters(describe_and_check(folder, head), named), nullptr};
  out.weights = std::make_shared<AdaptedWeights>(out.spec, folder.weights, opened, true);
  return out;
}

namespace {

std::pair<ModelFolder, ModelSpec> open_beside(const fs::path& folder, const fs::path& base) {
  const AdapterFolder adapter = open_adapter(folder);
  ModelFolder out = open_model(base);
  out.shape.score_head = out.shape.score_head || adapter.score_head;
  const HeadKind head = out.shape.score_head ? HeadKind::score : HeadKind::language;
  ModelSpec spec = with_adapter(describe_and_check(out, head, Missing::score_head), adapter.adapter,
                                folder.string());
  out.weights = adapted_weights(spec, out.weights, &adapter);
  out.path = folder;
  return {std::move(out), std::move(spec)};
}

}  // namespace

std::pair<ModelFolder, ModelSpec> open_beside_base(const fs::path& folder) {
  return open_beside(folder, base_folder(open_adapter(folder)));
}

ModelFolder open_merged(const fs::path& folder, const fs::path& base) {
  auto [out, spec] = open_beside(folder, base);
  out.weights = merged_weights(spec, out.weights);
  return std::move(out);
}

void require_shared_base(const ModelSpec& spec, const fs::path& folder, const ModelSpec& other) {
  std::set<std::string> saved, shared;
  const auto alike = frozen_alike(spec, other);
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    const Parameter& parameter = spec.parameters[p];
    if (part_of(parameter.role) == Part::saved) saved.insert(parameter.file_tensor().name);
    if (alike[p]) shared.insert(parameter.file_tensor().name);
  }
  const AdapterFolder adapter = open_adapter(folder);
  for (const std::string& stored : adapter.weights->names()) {
    VALIDATE(!shared.contains(AdaptedWeights::name_of(stored, saved)), ExitCode::bad_data,
             folder.string(), ": '", stored,
             "' takes the place of a weight of the base (several models of this run share it): "
             "merge the adapter (trireme convert --merge), or give each its own base");
  }
}

}  // namespace trireme::model
