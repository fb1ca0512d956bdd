// In shared memory, rank r's part holds a counter and room for two sums, which take turns:
//   ready  sums whose part the rank has written  (release after the part, acquire before reading
//   it)
// A rank that has written its part of sum s + 1 has read all of sum s, since its threads meet in
// between. So once all are ready for s + 1, the room of s is free for s + 2, and no counter of
// readers is needed.
#include "trireme/comm/rank_parts.hpp"

#include <atomic>
#include <new>
#include <vector>

#include "comm/shared_counter.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/topology.hpp"
#include "trireme/trace/activity.hpp"

namespace trireme::comm {
namespace {

constexpr int64_t control_bytes = 4096;
static_assert(sizeof(SharedCounter) <= control_bytes);

class SharedParts final : public RankParts {
 public:
  explicit SharedParts(const CommView& comm) : comm_(comm) { share(0); }

  void reserve(int64_t count) override {
    if (count > room_) share(count);
  }
  float* own(int64_t) override { return room_of(comm_.rank(), met_ + 1); }
  void meet(int64_t count) override {
    const trace::Collective collective{"sum of parts", comm_.name().c_str(),
                                       count * static_cast<int64_t>(sizeof(float))};
    ++met_;
    counter(comm_.rank()).value.store(met_, std::memory_order_release);
    for (int rank = 0; rank < comm_.size(); ++rank) wait_for_message(comm_, counter(rank), met_);
  }
  Sources sources() const override {
    return {room_of(0, met_), window_.part_bytes(0) / static_cast<int64_t>(sizeof(float))};
  }
  std::string kind() const override { return "memory that they share"; }

 private:
  // Nobody waits for a counter of the old window any more, since all come here behind the same
  // meeting; who still reads it has a map of its own.
  void share(int64_t count) {
    window_ = {};
    window_ = SharedWindow(comm_, control_bytes + 2 * count * static_cast<int64_t>(sizeof(float)),
                           "trireme-sums");
    new (window_.part(comm_.rank())) SharedCounter{};
    comm_.barrier();
    room_ = count;
    met_ = 0;
  }
  SharedCounter& counter(int rank) const {
    return *std::launder(reinterpret_cast<SharedCounter*>(window_.part(rank)));
  }
  float* room_of(int rank, uint64_t sum) const {
    return reinterpret_cast<float*>(window_.part(rank) + control_bytes) +
           (sum % 2 == 0 ? 0 : room_);
  }

  CommView comm_;
  SharedWindow window_;
  int64_t room_ = 0;  // numbers of a part
  uint64_t met_ = 0;  // sums in this window
};

class GatheredParts final : public RankParts {
 public:
  GatheredParts(const CommView& comm, std::string why) : comm_(comm), why_(std::move(why)) {}

  void reserve(int64_t count) override {
    const auto all = static_cast<size_t>(comm_.size() * count);
    if (all_.size() < all) all_.resize(all);
  }
  float* own(int64_t count) override { return all_.data() + comm_.rank() * count; }
  void meet(int64_t count) override {
    comm_.all_gather_in_place(all_.data(), count, DType::f32);
    count_ = count;
  }
  Sources sources() const override { return {all_.data(), count_}; }
  std::string kind() const override { return "MPI: " + why_; }

 private:
  CommView comm_;
  std::string why_;
  std::vector<float> all_;  // [ranks][count]
  int64_t count_ = 0;
};

}  // namespace

std::unique_ptr<RankParts> make_rank_parts(const CommView& comm, bool share) {
  std::string why = "generate.shared_sums = false";
  if (share) {
    try {
      const int nodes = discover(comm).nodes;
      if (nodes == 1) return std::make_unique<SharedParts>(comm);
      why = base::text("they are on ", nodes, " nodes");
    } catch (const UserError& error) {  // of a window, alike on all ranks
      if (error.code() != ExitCode::out_of_memory && error.code() != ExitCode::unfit_environment)
        throw;
      why = error.what();
    }
  }
  return std::make_unique<GatheredParts>(comm, std::move(why));
}

}  // namespace trireme::comm
