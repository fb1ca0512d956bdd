#include "trireme/model/spec.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "parameter_table.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/hash.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/parallel.hpp"

namespace trireme::model {
namespace {

using base::SliceAxis;
using base::Slicing;

constexpr int64_t values_per_task = int64_t{1} << 14;  // of initial values

// Bounds of `degree` parts of `extent`, as equal as multiples of 64 (or of a smaller power of two
// where 64 does not divide the extent or leaves a rank without any) allow: aligned slices keep
// vector kernels on whole vectors.
std::vector<int64_t> even_bounds(int64_t extent, int degree) {
  int64_t unit = std::gcd(extent, int64_t{64});
  while (unit > 1 && extent / unit < degree) unit /= 2;
  std::vector<int64_t> bounds;
  for (int rank = 0; rank <= degree; ++rank) bounds.push_back(extent / unit * rank / degree * unit);
  return bounds;
}

// The first ranks have one KV group more when the groups do not divide evenly; `width` is a group's
// extent.
std::vector<int64_t> group_bounds(int64_t groups, int degree, int64_t width) {
  std::vector<int64_t> bounds{0};
  for (int rank = 0; rank < degree; ++rank) {
    bounds.push_back(bounds.back() + width * (groups / degree + (rank < groups % degree ? 1 : 0)));
  }
  return bounds;
}

// Rows are cut where they are, else columns. Of an adapter: A's inputs and B's outputs as those of
// the weight.
Slicing slicing_of(Role role, const config::ModelShape& shape, int degree) {
  const auto bounds = [&](Extent extent) -> std::optional<std::vector<int64_t>> {
    switch (extent) {
      case Extent::q:
        return group_bounds(shape.kv_heads, degree, shape.heads / shape.kv_heads * shape.head_dim);
      case Extent::kv: return group_bounds(shape.kv_heads, degree, shape.head_dim);
      case Extent::ffn:
      case Extent::vocabulary: return even_bounds(length_of(extent, shape), degree);
      case Extent::none:
      case Extent::one:
      case Extent::hidden:
      case Extent::head: return std::nullopt;
    }
    throw InternalError("an extent without slicing");
  };
  const ParameterKind& kind = kind_of(base_role(role));
  const bool looks_up = base_role(role) == Role::embedding;
  const Extent inputs = looks_up ? kind.rows : kind.columns,
               outputs = looks_up ? kind.columns : kind.rows;
  std::optional<std::vector<int64_t>> rows, columns;
  switch (part_of(role)) {
    case Part::base:
    case Part::saved:
      rows = bounds(kind.rows);
      columns = rows ? std::nullopt : bounds(kind.columns);
      break;
    case Part::lora_a: columns = bounds(inputs); break;
    case Part::lora_b: rows = bounds(outputs); break;
  }
  if (rows) return {SliceAxis::rows, std::move(*rows)};
  if (columns) return {SliceAxis::columns, std::move(*columns)};
  return {};
}

// The stream of a parameter's initial values: a hash of its name, so that an actor and a critic of
// one shape, a tied and an untied model, or a module and its saved copy share what they have in
// common.
uint64_t stream_of(std::string name) {
  if (const size_t at = name.find(saved_mark); at != std::string::npos)
    name.erase(at, saved_mark.size());
  return base::fnv1a(name);
}

// An adapter adds nothing at first: one of its factors is 0. The other is drawn as peft does.
Start start_of(Role role) {
  const bool looks_up = base_role(role) == Role::embedding;
  switch (part_of(role)) {
    case Part::lora_a: return looks_up ? Start::zeros : Start::low;
    case Part::lora_b: return looks_up ? Start::unit : Start::zeros;
    default: return kind_of(base_role(role)).start;
  }
}

double deviation_of(Start start, const config::ModelShape& shape) {
  if (start == Start::score) return 1.0 / static_cast<double>(shape.hidden + 1);
  return start == Start::unit ? 1 : shape.initializer_range;
}

// torch.nn.init.kaiming_uniform_(a = sqrt(5)).
void draw_low(const base::TensorSpec& tensor, const base::Block& block, uint64_t seed, float* out) {
  const double bound = 1 / std::sqrt(static_cast<double>(tensor.columns()));
  const uint64_t stream = stream_of(tensor.name);
  for (int64_t row = 0; row < block.rows; ++row) {
    for (int64_t column = 0; column < block.columns; ++column) {
      const int64_t at = (block.row + row) * tensor.columns() + block.column + column;
      const float u = base::uniform(seed, base::Stream::init, stream, static_cast<uint32_t>(at));
      *out++ = static_cast<float>((2 * double{u} - 1) * bound);
    }
  }
}

}  // namespace

std::vector<base::TensorSpec> ModelSpec::tensors() const {
  std::vector<base::TensorSpec> out;
  out.reserve(parameters.size());
  for (const auto& parameter : parameters) out.push_back(parameter.spec);
  return out;
}

std::vector<std::string> layer_groups(const ModelSpec& spec) {
  std::vector<std::string> groups(spec.parameters.size());
  const int layers = static_cast<int>(spec.stages.size()) - 2, together = (layers + 3) / 4;
  for (const Stage& stage : spec.stages) {
    const int first = stage.layer / std::max(together, 1) * together,
              last = std::min(first + together, layers) - 1;
    for (const size_t p : stage.parameters) {
      if (!groups[p].empty()) continue;  // of the embedding, which the head is tied to
      groups[p] = stage.kind == StageKind::embedding ? "embedding"
                  : stage.kind == StageKind::head    ? "head"
                                                     : base::text("layers_", first, "_", last);
    }
  }
  return groups;
}

int64_t ModelSpec::elements() const {
  int64_t sum = 0;
  for (const auto& parameter : parameters) sum += parameter.spec.elements();
  return sum;
}

int64_t ModelSpec::trainable_elements() const {
  int64_t sum = 0;
  for (const auto& parameter : parameters) {
    if (parameter.trainable) sum += parameter.spec.elements();
  }
  return sum;
}

std::vector<size_t> ModelSpec::trainable_parameters() const {
  std::vector<size_t> out;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].trainable) out.push_back(p);
  }
  return out;
}

std::vector<std::string> ModelSpec::trainable_names() const {
  std::vector<std::string> out;
  for (const size_t p : trainable_parameters()) out.push_back(parameters[p].spec.name);
  return out;
}

bool ModelSpec::is_trainable() const {
  return std::ranges::any_of(parameters, &Parameter::trainable);
}

bool ModelSpec::is_trainable(const Stage& stage) const {
  return std::ranges::any_of(stage.parameters,
                             [this](size_t p) { return parameters[p].trainable; });
}

size_t ModelSpec::position_of(const Stage& stage, Role role) const {
  size_t i = 0;
  while (i < stage.parameters.size() && parameters[stage.parameters[i]].role != role) ++i;
  if (i < stage.parameters.size()) return i;
  throw InternalError(base::text("the model has no parameter of role ", static_cast<int>(role),
                                 " in layer ", stage.layer));
}

Value Stage::result() const { return result_of(base_operations().back()); }

size_t ModelSpec::head_position(AdapterUse use) const {
  const Stage& stage = stages.back();
  const Role role = parameters[head_parameter()].role;
  return position_of(stage, use == AdapterUse::applied ? role : base_role(role));
}

std::optional<size_t> ModelSpec::head_low_position(AdapterUse use) const {
  const Stage& stage = stages.back();
  if (!stage.low || use == AdapterUse::disabled) return std::nullopt;
  return position_of(stage, adapter_role(parameters[head_parameter()].role, Part::lora_b));
}

size_t ModelSpec::index_of(Role role, int layer) const {
  for (const auto& stage : stages) {
    if (stage.layer != layer) continue;
    for (const size_t index : stage.parameters) {
      if (parameters[index].role == role) return index;
    }
  }
  throw InternalError(base::text("the model has no parameter of role ", static_cast<int>(role),
                                 " in layer ", layer));
}

namespace {

std::vector<int64_t> widths_of(const ModelSpec& spec) {
  std::vector<int64_t> widths(spec.values, 0);
  for (const Stage& stage : spec.stages) {
    for (const Operation& operation : stage.operations) {
      int64_t& width = widths[result_of(operation).id];
      if (const auto* look_up = std::get_if<LookUp>(&operation)) {
        const auto& tensor = spec.parameters[spec.index_of(stage, look_up->weight)].spec;
        width = look_up->columns ? tensor.rows() : tensor.columns();
      } else if (std::holds_alternative<Linear>(operation)) {
        width = spec.parameters[spec.index_of(stage, *weight_of(operation))].spec.rows();
      } else {
        width = widths[reads_of(operation).front().id];
      }
    }
  }
  return widths;
}

// Each value that an operation has written is another tensor than the value before.
class KeptOfStage {
 public:
  KeptOfStage(const std::vector<int64_t>& widths, Kept OperationRow::*by)
      : widths_(widths), by_(by), written_(widths.size(), 0) {}

  KeptColumns of(const Stage& stage) {
    for (const Operation& operation : stage.operations) add(operation);
    return sum_;
  }

 private:
  void add(const Operation& operation) {
    const Kept& kept = row_of(operation).*by_;
    const std::vector<Value> reads = reads_of(operation);
    for (size_t i = 0; i < reads.size(); ++i) {
      if ((kept.reads >> i & 1) != 0) keep(reads[i]);
    }
    if (row_of(operation).computes) ++written_[result_of(operation).id];
    if (kept.result) keep(result_of(operation));
    if (reads.empty()) return;
    const int64_t width = widths_[reads.front().id], head_dim = head_dim_of(operation);
    sum_.values += kept.copies * width;
    sum_.numbers += kept.wide * width;
    if (kept.statistic) sum_.numbers += head_dim > 0 ? width / head_dim : 1;
  }
  void keep(Value value) {
    if (value == residual && written_[value.id] == 0) return;
    if (kept_.insert({value.id, written_[value.id]}).second) sum_.values += widths_[value.id];
  }

  const std::vector<int64_t>& widths_;
  Kept OperationRow::*by_;
  std::vector<int> written_;  // times, by value
  std::set<std::pair<uint8_t, int>> kept_;
  KeptColumns sum_;
};

// Of the values that stand at a time: a result stands beside the one that it replaces.
int64_t most_columns(const std::vector<Operation>& operations, const std::vector<int64_t>& widths) {
  std::vector<int64_t> standing(widths.size(), 0);
  int64_t sum = 0, most = 0;
  const auto set = [&](Value value, int64_t columns) {
    sum += columns - standing[value.id];
    standing[value.id] = columns;
  };
  for (const Operation& operation : operations) {
    const Value result = result_of(operation);
    if (row_of(operation).computes) {
      most = std::max(most, sum + widths[result.id]);
      set(result, widths[result.id]);
    }
    if (const auto* add = std::get_if<Add>(&operation); add && add->last) set(add->other, 0);
  }
  return most;
}

}  // namespace

KeptColumns kept_by_block(const ModelSpec& spec, Kept OperationRow::*by) {
  const std::vector<int64_t> widths = widths_of(spec);
  KeptColumns most;
  for (const Stage& stage : spec.stages) {
    if (stage.kind != StageKind::block) continue;
    const KeptColumns kept = KeptOfStage(widths, by).of(stage);
    most.values = std::max(most.values, kept.values);
    most.numbers = std::max(most.numbers, kept.numbers);
  }
  return most;
}

int64_t adapter_columns(const ModelSpec& spec) {
  const std::vector<int64_t> widths = widths_of(spec);
  int64_t more = 0;
  for (const Stage& stage : spec.stages) {
    if (stage.kind != StageKind::block) continue;
    more = std::max(more, most_columns(stage.operations, widths) -
                              most_columns(stage.base_operations(), widths));
  }
  return more;
}

base::ShardLayout tensor_parallel_layout(const ModelSpec& spec, int degree) {
  VALIDATE(degree >= 1 && degree <= spec.shape.kv_heads, ExitCode::configuration,
           "tensor parallelism of ", degree, " ranks is not possible for a model with ",
           spec.shape.kv_heads, " KV heads (a KV group is never split): choose 1 to ",
           spec.shape.kv_heads);
  std::vector<Slicing> slicing;
  for (const auto& parameter : spec.parameters) {
    VALIDATE(degree == 1 || parameter.role != Role::whole_q_norm, ExitCode::configuration,
             "tensor parallelism of ", degree,
             " ranks is not supported for this model (its norms "
             "of q and k take whole rows, of which each rank would have a part): use one rank for "
             "each replica (generate.tensor_parallel = 1, --tp 1)");
    slicing.push_back(slicing_of(parameter.role, spec.shape, degree));
  }
  return base::ShardLayout::sliced(spec.tensors(), degree, std::move(slicing));
}

void initial_values(const ModelSpec& spec, size_t parameter, const base::Block& block,
                    uint64_t seed, float* out) {
  const base::TensorSpec& tensor = spec.parameters.at(parameter).spec;
  const Role role = spec.parameters.at(parameter).role;
  const std::span<float> values(out, static_cast<size_t>(block.elements()));
  const Start start = start_of(role);
  if (start == Start::zeros || start == Start::ones || start == Start::number) {
    // A saved copy begins as what it is a copy of.
    const bool own = part_of(role) == Part::base || part_of(role) == Part::saved;
    std::fill(values.begin(), values.end(),
              own ? static_cast<float>(first_value(kind_of(base_role(role)), spec.shape)) : 0.0f);
    return;
  }
  if (start == Start::low) return draw_low(tensor, block, seed, out);
  const uint64_t stream = stream_of(tensor.name);
  const double deviation = deviation_of(start, spec.shape);
  kernels::parallel_for(
      0, block.rows, std::max<int64_t>(values_per_task / std::max<int64_t>(block.columns, 1), 1),
      [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t first = (block.row + row) * tensor.columns() + block.column;
          const auto of_row = values.subspan(static_cast<size_t>(row * block.columns),
                                             static_cast<size_t>(block.columns));
          base::normals(seed, stream, static_cast<uint64_t>(first), of_row);
          for (float& value : of_row) value *= static_cast<float>(deviation);
        }
      });
}

}  // namespace trireme::model
