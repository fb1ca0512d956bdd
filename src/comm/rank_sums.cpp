#include "trireme/comm/rank_sums.hpp"

#include <cstring>
#include <vector>

#include "comm/shard_exchange_parts.hpp"
#include "trireme/base/error.hpp"

namespace trireme::comm {
namespace {

class HostSums final : public RankSums {
 public:
  explicit HostSums(const CommView& comm) : comm_(comm) {}

  void add_up(void* values, int64_t count, DType type) override {
    RankSums::count(count * static_cast<int64_t>(size_of(type)), true);
    EXPECT(type == DType::f32 || type == DType::bf16);
    const int64_t bytes = count * static_cast<int64_t>(size_of(type));
    all_.resize(static_cast<size_t>(comm_.size() * bytes));
    std::memcpy(all_.data() + comm_.rank() * bytes, values, static_cast<size_t>(bytes));
    comm_.all_gather_in_place(all_.data(), count, type);
    Sources sources;
    for (int rank = 0; rank < comm_.size(); ++rank) sources.push_back(all_.data() + rank * bytes);
    sum_in_order(static_cast<std::byte*>(values), type, false, sources, count);
  }

  void add_up_in(DType, float*, int64_t) override { throw InternalError("values on the host"); }
  void gather(void* all, int64_t bytes) override {
    RankSums::count(bytes, true);
    comm_.all_gather_in_place(all, bytes, DType::u8);
  }
  std::string kind() const override { return "MPI through host memory"; }

 private:
  CommView comm_;
  std::vector<std::byte> all_;  // of [ranks][count] values
};

}  // namespace

std::unique_ptr<RankSums> make_rank_sums(const CommView& comm, bool device, void* compute_stream) {
  if (!device) return std::make_unique<HostSums>(comm);
  VALIDATE(device_support().make_sums != nullptr, ExitCode::unfit_environment,
           "sums between GPUs were asked for, but this program has no CUDA: use trireme-gpu, or "
           "run.device = \"cpu\"");
  return device_support().make_sums(comm, compute_stream);
}

}  // namespace trireme::comm
