#include "torch/torch.hpp"

#include "zero/gradient_sums.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/checked.hpp"

namespace trireme::zero {

GradientSums::GradientSums(std::vector<comm::SlotGeometry> stages, at::Device device)
    : stages_(std::move(stages)), has_(stages_.size(), false) {
  int64_t elements = 0;
  for (const auto& stage : stages_) {
    begin_.push_back(elements);
    elements = base::checked_add(elements, stage.elements);
  }
  flat_ = at::empty({elements}, at::TensorOptions().dtype(at::kFloat).device(device));
}

at::Tensor GradientSums::parameter(int stage, size_t index) const {
  const auto s = static_cast<size_t>(stage);
  const int64_t begin = stages_[s].parameters[index].offset;
  const int64_t end = index + 1 < stages_[s].parameters.size()
                          ? stages_[s].parameters[index + 1].offset
                          : stages_[s].elements;
  return flat_.narrow(0, begin_[s] + begin, end - begin);
}

GradientPlace GradientSums::of(int stage) {
  const auto s = static_cast<size_t>(stage);
  GradientPlace place{{}, has_[s]};
  has_[s] = true;
  for (const auto& parameter : stages_[s].parameters)
    place.parameters.push_back(flat_.mutable_data_ptr<float>() + begin_[s] + parameter.offset);
  return place;
}

GradientPlace GradientSums::move_to(int stage, std::vector<float*> slot) {
  const auto s = static_cast<size_t>(stage);
  if (!wanted() || !has_[s]) return {std::move(slot), false};
  for (size_t i = 0; i < slot.size(); ++i) {
    const at::Tensor sums = parameter(stage, i);
    at::from_blob(slot[i], sums.sizes(), sums.options()).copy_(sums);
  }
  has_[s] = false;
  return {std::move(slot), true};
}

void GradientSums::forget() { std::fill(has_.begin(), has_.end(), false); }

bool GradientSums::empty() const {
  return std::none_of(has_.begin(), has_.end(), [](bool has) { return has; });
}

int64_t GradientSums::bytes() const {
  return flat_.defined() ? static_cast<int64_t>(flat_.nbytes()) : 0;
}

}  // namespace trireme::zero
