#include "torch/torch.hpp"

#include "trireme/generate/weights.hpp"

#include <algorithm>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/huge_buffer.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/kernels/int8_gemm.hpp"
#include "trireme/kernels/parallel.hpp"
#include "trireme/kernels/scalar_type.hpp"

namespace trireme::generate {
namespace {
constexpr int64_t alignment = 64;
}

struct GeneratorWeights::Storage {
  comm::HugeBuffer host, int8;
  // One for each product: what other roles allocate meanwhile keeps no room of all from being had
  // again.
  std::vector<at::Tensor> device;
};

GeneratorWeights::GeneratorWeights(const model::ModelSpec& spec, config::DType dtype, int rank,
                                   int degree, Place place, bool allocate)
    : layout_(model::tensor_parallel_layout(spec, degree)),
      dtype_(dtype),
      rank_(rank),
      place_(place),
      joins_(model::joins_the_one_before(spec)),
      pointers_(spec.parameters.size(), nullptr),
      storage_(std::make_unique<Storage>()) {
  EXPECT(rank >= 0 && rank < degree);
  if (!allocate) return;
  std::vector<int64_t> offsets;
  for (size_t p = 0; p < pointers_.size(); ++p) {
    offsets.push_back(bytes_);
    bytes_ += slice_bytes(p);
  }
  if (place == Place::device) {
    restore();
    for (at::Tensor& tensor : storage_->device) tensor.zero_();
    return;
  }
  storage_->host = comm::HugeBuffer(bytes_, comm::FirstTouch::now, "the generator's weights",
                                    "give the job more memory, or use more tensor-parallel ranks");
  for (size_t p = 0; p < pointers_.size(); ++p) {
    owned_.push_back(storage_->host.data() + offsets[p]);
    pointers_[p] = owned_[p];
  }
}

int64_t GeneratorWeights::slice_bytes(size_t parameter) const {
  return base::round_up(block(parameter).elements() * config::bytes_per_element(dtype_), alignment);
}

int64_t GeneratorWeights::release() {
  if (storage_->device.empty()) return 0;
  storage_->device.clear();
  owned_.clear();
  std::fill(pointers_.begin(), pointers_.end(), nullptr);
  return bytes_;
}

void GeneratorWeights::restore() {
  if (place_ == Place::host || !storage_->device.empty()) return;
  for (size_t first = 0, end = 0; first < pointers_.size(); first = end) {
    int64_t bytes = 0;
    for (end = first; end == first || (end < pointers_.size() && joins_[end]); ++end)
      bytes += slice_bytes(end);
    storage_->device.push_back(
        at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(kernels::device_type())));
    auto* at = static_cast<std::byte*>(storage_->device.back().mutable_data_ptr());
    for (size_t p = first; p < end; at += slice_bytes(p++)) {
      owned_.push_back(at);
      pointers_[p] = at;
    }
  }
  ++times_placed_;
}

GeneratorWeights::GeneratorWeights(const model::ModelSpec& spec, config::DType dtype, int rank,
                                   int degree, Place place)
    : GeneratorWeights(spec, dtype, rank, degree, place, true) {}

GeneratorWeights GeneratorWeights::aliasing(const model::ModelSpec& spec, config::DType dtype,
                                            int rank, int degree) {
  return GeneratorWeights(spec, dtype, rank, degree, Place::host, false);
}

GeneratorWeights::GeneratorWeights(GeneratorWeights&&) noexcept = default;
GeneratorWeights& GeneratorWeights::operator=(GeneratorWeights&&) noexcept = default;
GeneratorWeights::~GeneratorWeights() = default;

std::vector<std::byte*> GeneratorWeights::storage() {
  EXPECT(!owned_.empty());
  return owned_;
}

std::string GeneratorWeights::describe_memory() const {
  return storage_->host.bytes() > 0
             ? base::human_bytes(static_cast<double>(bytes_)) + ", " + storage_->host.describe()
             : "";
}

at::Tensor GeneratorWeights::tensor(size_t parameter) const {
  return view(parameter, block(parameter).rows);
}

at::Tensor GeneratorWeights::joint_tensor(size_t first, size_t count) const {
  int64_t rows = 0;
  for (size_t p = first; p < first + count; ++p) {
    const bool here =
        p == first || (joins_[p] && block(p).columns == block(first).columns &&
                       pointers_[p] == pointers_[p - 1] + block(p - 1).elements() *
                                                              config::bytes_per_element(dtype_));
    if (!here) return {};
    rows += block(p).rows;
  }
  return view(first, rows);
}

at::Tensor GeneratorWeights::view(size_t parameter, int64_t rows) const {
  EXPECT(pointers_[parameter] != nullptr);
  const bool vector = layout_.tensors()[parameter].shape.size() == 1;
  const std::vector<int64_t> shape =
      vector ? std::vector<int64_t>{rows} : std::vector<int64_t>{rows, block(parameter).columns};
  const auto options = at::TensorOptions()
                           .dtype(kernels::scalar_type(dtype_))
                           .device(place_ == Place::host ? at::kCPU : kernels::device_type());
  return at::from_blob(const_cast<std::byte*>(pointers_[parameter]), shape, options);
}

void GeneratorWeights::alias(const std::vector<const std::byte*>& pointers) {
  EXPECT(pointers.size() == pointers_.size() && owned_.empty());
  pointers_ = pointers;
  ++times_placed_;
}

void GeneratorWeights::add_int8(const model::ModelSpec& spec) {
  VALIDATE(place_ == Place::host, ExitCode::configuration,
           "weights in 8 bits (generate.weights, --weights) are for the fused generation kernels, "
           "which run on the host: take \"model\", or generate on CPUs");
  VALIDATE(!spec.adapter, ExitCode::configuration,
           "weights in 8 bits (generate.weights, --weights) are not supported with an adapter "
           "beside them (a quantised base): take \"model\", or merge the adapter");
  EXPECT(int8_.empty() && spec.parameters.size() == pointers_.size());
  std::vector<int64_t> offsets;
  for (size_t p = 0; p < pointers_.size(); ++p) {
    const base::TensorSpec& tensor = layout_.tensors()[p];
    const bool multiplies =
        tensor.shape.size() == 2 &&
        (spec.parameters[p].role != model::Role::embedding || p == spec.head_parameter());
    offsets.push_back(multiplies ? int8_bytes_ : -1);
    if (multiplies) int8_bytes_ += kernels::int8_bytes(block(p).columns, block(p).rows);
  }
  storage_->int8 =
      comm::HugeBuffer(int8_bytes_, comm::FirstTouch::now, "the generator's weights in 8 bits",
                       "give the job more memory, or set generate.weights = \"model\"");
  for (const int64_t offset : offsets)
    int8_.push_back(offset < 0 ? nullptr : storage_->int8.data() + offset);
}

int64_t GeneratorWeights::quantise() {
  constexpr int64_t panels_at_least = 16;  // of a thread
  for (size_t p = 0; p < int8_.size(); ++p) {
    if (int8_[p] == nullptr) continue;
    const base::Block b = block(p);
    kernels::parallel_for(
        0, kernels::int8_panels(b.rows), panels_at_least, [&](int64_t first, int64_t last) {
          kernels::quantise({dtype_, data(p), b.columns, b.rows}, int8_[p], first, last);
        });
  }
  return int8_bytes_;
}

}  // namespace trireme::generate
