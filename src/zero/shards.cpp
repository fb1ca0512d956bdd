#include "torch/torch.hpp"

#include "zero/shards.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"

namespace trireme::zero {
namespace {

constexpr int64_t slot_align = 32;   // elements: 64 bytes of bf16
constexpr int64_t shard_align = 64;  // elements: one word of the change bitmap

int64_t slice_elements(const base::TensorSpec& tensor, int ranks) {
  return base::checked_mul(base::ShardLayout::rows_per_rank(tensor, ranks), tensor.columns());
}

}  // namespace

std::vector<comm::SlotGeometry> slot_geometry(const model::ModelSpec& spec, int ranks) {
  std::vector<comm::SlotGeometry> slots;
  for (const auto& stage : spec.stages) {
    comm::SlotGeometry slot;
    for (const size_t parameter : stage.parameters) {
      const int64_t per_rank = slice_elements(spec.parameters[parameter].spec, ranks);
      slot.parameters.push_back(
          {parameter, slot.elements, per_rank, spec.parameters[parameter].trainable});
      slot.elements = base::checked_add(
          slot.elements, base::round_up(base::checked_mul<int64_t>(per_rank, ranks), slot_align));
    }
    slots.push_back(std::move(slot));
  }
  return slots;
}

bool decays(const std::string& name) {
  // beta and eps of xIELU are not trained.
  constexpr std::array exempt = {"bias",        "norm.weight", "layernorm.weight",
                                 "ln_f.weight", "act_fn.beta", "act_fn.eps"};
  for (const char* part : exempt) {
    if (name.find(part) != std::string::npos) return false;
  }
  return true;
}

ShardMap::ShardMap(const model::ModelSpec& spec, int ranks, int rank)
    : layout_(base::ShardLayout::by_rows(spec.tensors(), ranks)), rank_(rank) {
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    const bool trainable = spec.parameters[p].trainable;
    offset_.push_back(trainable ? elements_ : -1);
    if (!trainable) continue;
    elements_ += base::round_up(slice_elements(layout_.tensors()[p], ranks), shard_align);
    if (!own(p).empty()) trained_.push_back(p);
  }
}

int64_t ShardMap::largest_stage(const model::ModelSpec& spec) const {
  int64_t most = 0;
  for (const model::Stage& stage : spec.stages) {
    int64_t sum = 0;
    for (const size_t p : stage.parameters) {
      if (trainable(p)) sum += own(p).elements();
    }
    most = std::max(most, sum);
  }
  return most;
}

std::vector<std::vector<ShardRange>> ShardMap::completed_by(const model::ModelSpec& spec) const {
  std::vector<std::vector<ShardRange>> out;
  std::vector<bool> seen(spec.parameters.size());
  for (const model::Stage& stage : spec.stages) {
    auto& ranges = out.emplace_back();
    for (const size_t p : stage.parameters) {
      if (!trainable(p) || seen[p]) continue;
      seen[p] = true;
      const int64_t elements =
          base::round_up(slice_elements(layout_.tensors()[p], layout_.ranks()), shard_align);
      if (ranges.empty() || ranges.back().first + ranges.back().elements != offset(p))
        ranges.push_back({offset(p), 0});
      ranges.back().elements += elements;
    }
  }
  return out;
}

at::Tensor ShardMap::allocate(at::Device device) const {
  return at::zeros({elements_}, at::TensorOptions().dtype(at::kFloat).device(device));
}

float* ShardMap::data(const at::Tensor& flat, size_t parameter) const {
  if (!flat.defined() || !trainable(parameter) || own(parameter).empty()) return nullptr;
  return flat.data_ptr<float>() + offset_[parameter];
}

}  // namespace trireme::zero
