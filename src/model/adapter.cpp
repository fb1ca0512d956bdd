// Puts an adapter's parameters and operations into a model.
#include "trireme/model/adapter.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <type_traits>
#include <utility>

#include "adapter_words.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/model/spec.hpp"

namespace trireme::model {
namespace {

using Operations = std::vector<Operation>;

constexpr std::string_view all_linear = "all-linear";

class Adapting {
 public:
  // `number`: of several adapters.
  Adapting(const ModelSpec& base, const Adapter& adapter, const std::string& where,
           std::optional<unsigned> number = std::nullopt)
      : base_(base), adapter_(adapter), where_(where), number_(number), out_(base) {
    if (!adapter.target_pattern.empty())
      pattern_ = expression(adapter.target_pattern, where + ": target_modules");
    if (!adapter.excluded_pattern.empty())
      excluded_ = expression(adapter.excluded_pattern, where + ": exclude_modules");
  }

  ModelSpec run() {
    check_numbers();
    refuse_biases();
    for (Parameter& parameter : out_.parameters) parameter.trainable = false;
    for (stage_ = 0; stage_ < out_.stages.size(); ++stage_) {
      Stage& stage = out_.stages[stage_];
      if (stage.without_adapter.empty()) stage.without_adapter = stage.operations;
      stage.operations = adapted();
      if (stage.kind == StageKind::head) adapt_head(stage);
    }
    check_words();
    out_.adapter = adapter_;
    return std::move(out_);
  }

 private:
  struct Module {
    Role role;
    Value in, out;
    std::string name;
    int64_t rank;
    Role of_a = role;  // whose A it has: of a fused weight's parts the first one's
    bool has_a() const { return of_a == role; }
  };

  void check_numbers() const {
    const auto check = [this](bool good, const char* what, const auto& value, const char* range) {
      VALIDATE(good, ExitCode::configuration, where_, ": ", what, " = ", value, " (must be ", range,
               "): correct it");
    };
    check(adapter_.rank >= 1, "rank", adapter_.rank, "1 or more");
    check(std::isfinite(adapter_.alpha) && adapter_.alpha > 0, "alpha", adapter_.alpha, "positive");
    check(adapter_.dropout >= 0 && adapter_.dropout < 1, "dropout", adapter_.dropout,
          "0 or more and less than 1");
  }

  void refuse_biases() const {
    for (const Parameter& parameter : base_.parameters) {
      VALIDATE(adapter_.bias == "none" || !parameter.spec.name.ends_with(".bias"),
               ExitCode::configuration, where_, ": bias = \"", adapter_.bias,
               "\" trains biases of the base (such as ", parameter.spec.name,
               "), which is not supported: use \"none\", or merge the adapter with peft");
    }
  }

  const Stage& before() const { return base_.stages[stage_]; }
  const Parameter& base_parameter(Role role) const {
    return base_.parameters[base_.index_of(before(), role)];
  }
  // As model files have it: the parts of a fused weight are one module, as for peft.
  std::string module_with(Role role) const {
    return module_of(base_parameter(role).file_tensor().name);
  }

  // A module that is saved whole is not a target, and one that is named in full is in every layer,
  // as in peft.
  bool is_target(const std::string& module, bool linear_of_block) {
    const int layer = before().layer;
    if (is_saved(module)) return false;
    const bool named = std::ranges::count(adapter_.targets, module) > 0;
    if (!named && !adapter_.layers.empty() && std::ranges::count(adapter_.layers, layer) == 0)
      return false;
    if (word_for(adapter_.excluded, module) != nullptr) return false;
    if (excluded_ && std::regex_match(module, *excluded_)) return false;
    if (pattern_) return std::regex_match(module, *pattern_);
    if (linear_of_block && std::ranges::count(adapter_.targets, all_linear) > 0) {
      used_.emplace(all_linear);
      return true;
    }
    const std::string* word = word_for(adapter_.targets, module);
    if (word != nullptr) used_.insert(*word);
    return word != nullptr;
  }
  // peft looks at the letters of the end here, not at whole parts: "norm" is input_layernorm, too.
  bool is_saved(const std::string& module) {
    const auto& words = adapter_.modules_to_save;
    const auto word =
        std::ranges::find_if(words, [&](const std::string& w) { return module.ends_with(w); });
    if (word != words.end()) used_.insert(*word);
    return word != words.end();
  }

  // The role that takes this one's place: of the saved copy, where there is one.
  Role saved(Role role) {
    const std::string module = module_with(role);
    if (part_of(role) != Part::base || !is_saved(module)) return role;
    refuse_tied(module, role);
    refuse_among_several(module);
    VALIDATE(!adapter_.strict || word_for(adapter_.targets, module) == nullptr,
             ExitCode::configuration, where_, ": ", module,
             " is adapted and saved whole (one of them trains it): name it once");
    Parameter copy = base_parameter(role);
    copy.role = adapter_role(role, Part::saved);
    copy.trainable = true;
    const auto mark = [](std::string& name) { name.insert(module_of(name).size(), saved_mark); };
    mark(copy.spec.name);
    if (copy.stored) mark(copy.stored->tensor.name);
    append_parameter(copy);
    return copy.role;
  }
  void use_saved(Operation& operation) {
    std::visit(
        [this](auto& o) {
          if constexpr (requires { o.weight; }) o.weight = saved(o.weight);
          if constexpr (requires { o.bias; }) {
            if (o.bias) o.bias = saved(*o.bias);
          }
          if constexpr (requires { o.weights; }) {
            for (Role& role : o.weights) role = saved(role);
          }
        },
        operation);
  }

  // A head's weight stays the last parameter of its stage.
  void append_parameter(Parameter parameter) {
    Stage& stage = out_.stages[stage_];
    const bool head = stage.kind == StageKind::head;
    stage.parameters.insert(stage.parameters.end() - (head ? 1 : 0), out_.parameters.size());
    out_.parameters.push_back(std::move(parameter));
  }

  Value new_value() {
    VALIDATE(out_.values < 256, ExitCode::configuration, where_,
             ": too many adapters, or different ranks of one, for one model: use fewer");
    return {static_cast<uint8_t>(out_.values++)};
  }
  Value low_of(Role role, int64_t rank) {
    const auto [found, fresh] = low_.try_emplace({role, rank});
    if (fresh) found->second = new_value();
    return found->second;
  }
  Value delta_of(Role role) {
    const auto [found, fresh] = delta_.try_emplace(role);
    if (fresh) found->second = new_value();
    return found->second;
  }

  void refuse_tied(const std::string& module, Role role) const {
    VALIDATE(!base_.shape.tied || role != Role::embedding, ExitCode::configuration, where_, ": ",
             module,
             " cannot be adapted or saved (embedding and head of this model are one): "
             "leave it out");
  }

  void refuse_among_several(const std::string& module) const {
    VALIDATE(!number_, ExitCode::configuration, where_, ": ", module,
             " is trained whole or is the head (several adapters in one batch share them): give "
             "this adapter a run of its own");
  }

  void check_rank(const Module& module, int64_t in, int64_t out) const {
    VALIDATE(!adapter_.strict || module.rank <= std::min(in, out), ExitCode::configuration, where_,
             ": rank = ", module.rank, " is more than a dimension of ", module.name, " (", out,
             " x ", in, "): set it to ", std::min(in, out), " or less");
  }
  Role marked(Role role, Part part) const { return adapter_role(role, part, number_.value_or(0)); }
  std::string name_of(std::string parameter) const {
    return number_ ? numbered(std::move(parameter), *number_) : parameter;
  }
  // A and B. A part of a fused weight has its rows of B, and the A of all parts.
  void append_matrices(const Module& module, bool looks_up) {
    const Parameter& of = base_parameter(module.role);
    const auto& shape = of.file_tensor().shape;
    const int64_t in = looks_up ? shape[0] : shape[1], out = looks_up ? shape[1] : shape[0];
    const char* const a = looks_up ? ".lora_embedding_A" : ".lora_A.weight";
    const char* const b = looks_up ? ".lora_embedding_B" : ".lora_B.weight";
    check_rank(module, in, out);
    if (module.has_a())
      append_parameter({{name_of(module.name + a), {module.rank, in}},
                        marked(module.role, Part::lora_a),
                        true,
                        std::nullopt});
    const Role role = marked(module.role, Part::lora_b);
    base::TensorSpec whole{name_of(module.name + b), {out, module.rank}};
    if (!of.stored) return append_parameter({std::move(whole), role, true, std::nullopt});
    base::TensorSpec part{name_of(module_of(of.spec.name) + b), {of.spec.rows(), module.rank}};
    append_parameter(
        {std::move(part), role, true, StoredTensor{std::move(whole), of.stored->first_row}});
  }

  std::optional<Module> target_of(const Operation& operation) {
    const std::vector<Role> roles = roles_of(operation);
    if (roles.empty() || part_of(roles.front()) != Part::base) return std::nullopt;
    const auto* linear = std::get_if<Linear>(&operation);
    const auto* look_up = std::get_if<LookUp>(&operation);
    if (linear == nullptr && look_up == nullptr) {
      for (const Role role : roles) refuse_target(module_with(role));
      return std::nullopt;
    }
    const Role role = *weight_of(operation);
    const std::string name = module_with(role);
    if (!is_target(name, linear != nullptr)) return std::nullopt;
    refuse_tied(name, role);
    return Module{.role = role,
                  .in = linear != nullptr ? linear->in : Value{},
                  .out = result_of(operation),
                  .name = name,
                  .rank = adapter_.rank_of(name)};
  }
  void refuse_target(const std::string& module) {
    // A bias that is added apart belongs to a linear module.
    const auto linear = [&](const Operation& o) {
      return std::holds_alternative<Linear>(o) && module_with(*weight_of(o)) == module;
    };
    if (std::ranges::any_of(before().operations, linear)) return;
    VALIDATE(pattern_ || !is_target(module, false), ExitCode::configuration, where_, ": ", module,
             " is not linear, so it has no low-rank adapter: name it in modules_to_save, or leave "
             "it out");
  }

  Operations adapted() {
    const Operations& all = before().operations;
    Operations list;
    for (size_t i = 0; i < all.size();) {
      const size_t count = std::max<size_t>(joint_linears(before(), i), 1);
      std::vector<Module> modules;
      for (const size_t end = i + count; i < end; ++i) {
        if (auto module = target_of(all[i])) {
          const auto first = std::ranges::find(modules, module->name, &Module::name);
          if (first != modules.end()) module->of_a = first->role;
          modules.push_back(std::move(*module));
        }
        list.push_back(all[i]);
        use_saved(list.back());
      }
      if (modules.empty()) continue;
      const bool reduced = i < all.size() && std::holds_alternative<Reduce>(all[i]);
      if (reduced) list.push_back(all[i++]);
      append_deltas(list, modules, reduced);
    }
    return list;
  }

  // In the order of the forward pass: all A of one input, which are one product where their rows
  // are neighbours, then all that follows.
  void append_deltas(Operations& list, const std::vector<Module>& modules, bool reduced) {
    for (const Module& m : modules) {
      const bool looks_up = m.role == Role::embedding;
      append_matrices(m, looks_up);
      if (!m.has_a()) continue;
      if (looks_up) {
        list.emplace_back(LookUp{low_of(m.role, m.rank), marked(m.role, Part::lora_a), true});
      } else {
        append_low(list, m);
      }
    }
    for (const Module& m : modules) {
      const Value low = low_of(m.of_a, m.rank), delta = delta_of(m.role);
      if (reduced) list.emplace_back(Reduce{low});  // inputs, or rows, are cut over the ranks
      if (m.has_a()) append_scale(list, low, m.name);
      if (m.has_a() && number_) list.emplace_back(Select{low, static_cast<int32_t>(*number_)});
      list.emplace_back(Linear{low, delta, marked(m.role, Part::lora_b), {}});
      list.emplace_back(Add{m.out, delta, m.out, true});
    }
  }
  void append_low(Operations& list, const Module& m) {
    Value in = m.in;
    if (adapter_.dropout > 0) {
      const auto [found, fresh] = dropped_.try_emplace(m.role);
      if (fresh) found->second = new_value();
      list.emplace_back(Drop{m.in, found->second, adapter_.dropout});
      in = found->second;
    }
    list.emplace_back(Linear{in, low_of(m.role, m.rank), marked(m.role, Part::lora_a), {}});
  }
  void append_scale(Operations& list, Value low, const std::string& module) const {
    if (const double scale = adapter_.scale_of(module); scale != 1)
      list.emplace_back(Scale{low, scale});
  }

  void adapt_head(Stage& stage) {
    const size_t index = base_.head_parameter();
    const Role role = base_.parameters[index].role;
    const std::string name =
        role == Role::embedding ? "lm_head" : module_of(base_.parameters[index].spec.name);
    if (role == Role::embedding) {
      const bool named = is_target(name, false) || is_saved(name);
      VALIDATE(!named, ExitCode::configuration, where_, ": ", name,
               " cannot be adapted or saved (embedding and head of this model are one): leave it "
               "out");
      return;
    }
    if (saved(role) != role) {  // the weight in use is the last one
      auto& list = stage.parameters;
      std::swap(list[list.size() - 1], list[list.size() - 2]);
      return;
    }
    if (!is_target(name, false)) return;
    refuse_among_several(name);
    VALIDATE(role == Role::lm_head, ExitCode::configuration, where_, ": ", name,
             " is a score head of one row: name it in modules_to_save");
    const Module module{.role = role,
                        .in = stage.result(),
                        .out = {},
                        .name = name,
                        .rank = adapter_.rank_of(name)};
    append_matrices(module, false);
    stage.low = low_of(role, module.rank);
    append_low(stage.operations, module);
    append_scale(stage.operations, *stage.low, name);
  }

  void check_words() const {
    const bool any = std::ranges::any_of(out_.parameters, [this](const Parameter& p) {
      return p.role == marked(base_role(p.role), Part::lora_a);
    });
    std::string wrong;
    for (const auto* words : {&adapter_.targets, &adapter_.modules_to_save}) {
      for (const std::string& word : *words) {
        if (used_.contains(word)) continue;
        wrong += base::text(wrong.empty() ? "" : ", ", "\"", word, "\"");
      }
    }
    const bool good = any && (wrong.empty() || !adapter_.strict);
    VALIDATE(good, ExitCode::configuration, where_, ": the model has no ",
             wrong.empty() ? "module that the targets name" : "module " + wrong,
             " (its modules are ", modules(), "): correct targets and modules_to_save");
  }
  std::string modules() const {
    std::vector<std::string> names;
    for (const Parameter& parameter : base_.parameters) {
      if (part_of(parameter.role) != Part::base) continue;
      const std::string module = module_of(parameter.file_tensor().name);
      const std::string last = module.substr(module.rfind('.') + 1);
      if (std::ranges::count(names, last) == 0) names.push_back(last);
    }
    return base::join(names);
  }

  const ModelSpec& base_;
  const Adapter& adapter_;
  const std::string& where_;
  std::optional<unsigned> number_;
  ModelSpec out_;
  std::optional<std::regex> pattern_, excluded_;
  size_t stage_ = 0;
  std::set<std::string, std::less<>> used_;
  std::map<std::pair<Role, int64_t>, Value> low_;
  std::map<Role, Value> delta_, dropped_;
};

}  // namespace

ModelSpec with_adapter(const ModelSpec& base, const Adapter& adapter, const std::string& where) {
  return Adapting(base, adapter, where).run();
}

ModelSpec with_adapters(const ModelSpec& base, std::span<const NamedAdapter> adapters) {
  ModelSpec out = base;
  for (size_t i = 0; i < adapters.size(); ++i) {
    Adapter adapter = adapters[i].adapter;
    adapter.dropout = 0;
    out = Adapting(out, adapter, adapters[i].where, static_cast<unsigned>(i)).run();
  }
  return out;
}

}  // namespace trireme::model
