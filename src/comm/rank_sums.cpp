#include "trireme/comm/rank_sums.hpp"

#include <cstring>
#include <vector>

#include "comm/shard_exchange_parts.hpp"
#include "trireme/base/bf16.hpp"
#include "trireme/base/error.hpp"

namespace trireme::comm {
namespace {

class HostSums final : public RankSums {
 public:
  explicit HostSums(const CommView& comm) : comm_(comm) {}

  void add_up(void* values, int64_t count, DType type) override {
    RankSums::count(count * static_cast<int64_t>(size_of(type)), true);
    all_.resize(static_cast<size_t>(comm_.size() * count));
    float* own = all_.data() + comm_.rank() * count;
    if (type == DType::f32) {
      std::memcpy(own, values, static_cast<size_t>(count) * sizeof(float));
    } else {
      EXPECT(type == DType::bf16);
      const auto* from = static_cast<const uint16_t*>(values);
      for (int64_t i = 0; i < count; ++i) own[i] = base::bf16_to_float(from[i]);
    }
    comm_.all_gather_in_place(all_.data(), count, DType::f32);
    float* sum = all_.data();
    for (int r = 1; r < comm_.size(); ++r) {
      const float* part = all_.data() + r * count;
      for (int64_t i = 0; i < count; ++i) sum[i] += part[i];
    }
    if (type == DType::f32) {
      std::memcpy(values, sum, static_cast<size_t>(count) * sizeof(float));
    } else {
      auto* out = static_cast<uint16_t*>(values);
      for (int64_t i = 0; i < count; ++i) out[i] = base::float_to_bf16(sum[i]);
    }
  }

  void gather(void* all, int64_t bytes) override {
    RankSums::count(bytes, true);
    comm_.all_gather_in_place(all, bytes, DType::u8);
  }
  std::string kind() const override { return "MPI through host memory"; }

 private:
  CommView comm_;
  std::vector<float> all_;  // [ranks][count]
};

}  // namespace

std::unique_ptr<RankSums> make_rank_sums(const CommView& comm, bool device, void* compute_stream) {
  if (!device) return std::make_unique<HostSums>(comm);
  VALIDATE(device_support().make_sums != nullptr, ExitCode::unfit_environment,
           "sums between GPUs were asked for, but this program has no CUDA: use trireme-gpu, or run.device = \"cpu\"");
  return device_support().make_sums(comm, compute_stream);
}

}  // namespace trireme::comm
