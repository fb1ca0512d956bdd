#include "torch/torch.hpp"

#include "zero/shards.hpp"

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
      slot.parameters.push_back({parameter, slot.elements, per_rank});
      slot.elements = base::checked_add(
          slot.elements, base::round_up(base::checked_mul<int64_t>(per_rank, ranks), slot_align));
    }
    slots.push_back(std::move(slot));
  }
  return slots;
}

bool decays(const std::string& name) {
  constexpr std::array exempt = {"bias", "norm.weight", "layernorm.weight", "ln_f.weight"};
  for (const char* part : exempt) {
    if (name.find(part) != std::string::npos) return false;
  }
  return true;
}

ShardMap::ShardMap(base::ShardLayout layout, int rank) : layout_(std::move(layout)), rank_(rank) {
  for (const auto& tensor : layout_.tensors()) {
    offset_.push_back(elements_);
    elements_ += base::round_up(slice_elements(tensor, layout_.ranks()), shard_align);
  }
}

at::Tensor ShardMap::allocate(at::Device device) const {
  return at::zeros({elements_}, at::TensorOptions().dtype(at::kFloat).device(device));
}

float* ShardMap::data(const at::Tensor& flat, size_t parameter) const {
  if (!flat.defined() || own(parameter).empty()) return nullptr;
  return flat.data_ptr<float>() + offset_[parameter];
}

}  // namespace trireme::zero
