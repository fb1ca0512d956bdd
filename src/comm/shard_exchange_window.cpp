// The exchange of ranks that share memory. Every weight lies once in a window, so gathering moves
// nothing. Gradients are written to each rank's own part of a second window and summed by direct
// reads: a rank adds its slices of all parts.
//
// Protocol, per rank two counters in its part of the gradient window, written by it alone:
//   ready  reductions whose gradients it has written         (release after the gradients, acquire
//   before reading them) done   reductions in which it has read all others' parts  (release after
//   reading, acquire before overwriting)
// Reductions have the same order on every rank, so one number says which. A part is overwritten
// once every rank's `done` has passed the last reduction that used the same memory.
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

#include "comm/mpi_support.hpp"
#include "comm/shard_exchange_parts.hpp"
#include "comm/shared_counter.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::comm {
namespace {

struct Control {
  SharedCounter ready;
  SharedCounter done;
};
constexpr int64_t control_bytes = 4096;
static_assert(sizeof(Control) <= control_bytes);

class WindowExchange final : public ShardExchange {
 public:
  WindowExchange(Comm comm, std::vector<SlotGeometry> stages, const ExchangeOptions& options)
      : comm_(std::move(comm)),
        stages_(std::move(stages)),
        gradient_slots_(gradient_slots(stages_)),
        options_(options),
        arena_(gradient_slots_),
        storage_(stages_, comm_->size()),
        element_(static_cast<int64_t>(size_of(options.weight_type))),
        last_use_(stages_.size(), 0) {
    // The weights are one rank's part, so that every parameter is contiguous across the ranks'
    // slices. All ranks read all of them: their pages are dealt to the NUMA nodes of all. Gradient
    // slots are written and zeroed by their owner: they lie on its node.
    const int64_t weights = storage_.elements * element_;
    weights_ =
        SharedWindow(comm_, comm_->rank() == 0 ? weights : 0, "trireme-weights", Placement::dealt);
    counters_.weight_memory = base::ceil_div(weights, static_cast<int64_t>(comm_->size()));
    if (arena_.elements() == 0) return;
    const int64_t gradients = arena_.elements() * static_cast<int64_t>(sizeof(float));
    gradients_ = SharedWindow(comm_, control_bytes + gradients, "trireme-gradients");
    counters_.gradient_memory = gradients;
    new (&control(comm_->rank())) Control{};
    comm_->barrier();
  }
  // Nobody unmaps while another still reads: an unmapped page of a live memory file stays valid for
  // the others, so no barrier is needed here; the communicator's end is collective.
  ~WindowExchange() override = default;

  std::byte* own_slice(size_t parameter) override {
    return weight(parameter) + comm_->rank() * storage_.per_rank[parameter] * element_;
  }
  const std::byte* whole(size_t parameter) const override { return weight(parameter); }
  void begin_update() override { barrier(); }
  void end_update() override { barrier(); }

  void gather(int) override { ++counters_.gathers; }
  std::vector<std::byte*> gathered(int stage) override {
    std::vector<std::byte*> pointers;
    for (const auto& parameter : stages_[static_cast<size_t>(stage)].parameters)
      pointers.push_back(weight(parameter.id));
    return pointers;
  }
  void release(int) override {}
  bool holds(int) const override { return true; }

  std::vector<float*> gradients(int stage) override;
  void reduce(int stage) override;
  void finish_reduce(int stage, const std::vector<float*>& into) override;

  const ExchangeCounters& counters() const override { return counters_; }
  std::string kind() const override {
    const bool alike = !gradients_.valid() || gradients_.kind() == weights_.kind();
    return base::text("shared window (", weights_.kind(),
                      alike ? "" : "; gradients: " + gradients_.kind(), ")");
  }

 private:
  std::byte* weight(size_t parameter) const {
    return weights_.part(0) + storage_.offset[parameter] * element_;
  }
  Control& control(int rank) const {
    return *std::launder(reinterpret_cast<Control*>(gradients_.part(rank)));
  }
  float* gradient_base(int rank, int stage) const {
    return reinterpret_cast<float*>(gradients_.part(rank) + control_bytes) + arena_.begin(stage);
  }
  int64_t reduced_element() const { return static_cast<int64_t>(size_of(options_.reduce_type)); }
  void barrier() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    comm_->barrier();
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void wait_until(const SharedCounter& counter, uint64_t value) {
    counters_.wait_seconds += wait_for_counter(comm_, counter, value);
  }

  Comm comm_;
  std::vector<SlotGeometry> stages_, gradient_slots_;
  ExchangeOptions options_;
  TwoStageArena arena_;  // of the gradients
  ParameterStorage storage_;
  int64_t element_;
  SharedWindow weights_;
  SharedWindow gradients_;
  std::vector<uint64_t> last_use_;  // by stage: number of its last reduction, from 1; 0: none
  uint64_t begun_ = 0;
  uint64_t finished_ = 0;
  ExchangeCounters counters_;
};

std::vector<float*> WindowExchange::gradients(int stage) {
  EXPECT(arena_.elements() > 0);
  uint64_t needed = 0;
  for (int other = 0; other < arena_.stages(); ++other) {
    if (arena_.overlap(stage, other))
      needed = std::max(needed, last_use_[static_cast<size_t>(other)]);
  }
  if (needed > finished_) {
    throw InternalError(base::text("gradients of stage ", stage,
                                   " over those of a reduction that is not finished"));
  }
  for (int rank = 0; rank < comm_->size(); ++rank) wait_until(control(rank).done, needed);
  float* base = gradient_base(comm_->rank(), stage);
  std::vector<float*> pointers;
  for (const auto& parameter : gradient_slots_[static_cast<size_t>(stage)].parameters)
    pointers.push_back(base + parameter.offset);
  return pointers;
}

void WindowExchange::reduce(int stage) {
  if (options_.reduce_type == DType::bf16) {
    round_in_place(gradient_base(comm_->rank(), stage),
                   gradient_slots_[static_cast<size_t>(stage)].elements, options_.parallel_for);
  }
  last_use_[static_cast<size_t>(stage)] = ++begun_;
  control(comm_->rank()).ready.value.store(begun_, std::memory_order_release);
}

void WindowExchange::finish_reduce(int stage, const std::vector<float*>& into) {
  const uint64_t number = last_use_[static_cast<size_t>(stage)];
  if (number != finished_ + 1)
    throw InternalError(base::text("the reduction of stage ", stage, " is finished out of order"));
  const int size = comm_->size();
  for (int rank = 0; rank < size; ++rank) wait_until(control(rank).ready, number);

  const SlotGeometry& slot = gradient_slots_[static_cast<size_t>(stage)];
  EXPECT(into.size() == slot.parameters.size());
  trace::Region region{"sum gradients", stage, trace::Category::communication};
  Sources sources(static_cast<size_t>(size));
  for (size_t p = 0; p < slot.parameters.size(); ++p) {
    const auto& parameter = slot.parameters[p];
    const int64_t offset =
        (parameter.offset + comm_->rank() * parameter.per_rank) * reduced_element();
    for (int rank = 0; rank < size; ++rank)
      sources[static_cast<size_t>(rank)] =
          reinterpret_cast<const std::byte*>(gradient_base(rank, stage)) + offset;
    add_in_order(into[p], options_.reduce_type, sources, parameter.per_rank, options_.parallel_for);
    region.add_bytes((size - 1) * parameter.per_rank * reduced_element());
    counters_.reduced_bytes += (size - 1) * parameter.per_rank * reduced_element();
  }
  finished_ = number;
  ++counters_.reductions;
  control(comm_->rank()).done.value.store(number, std::memory_order_release);
}

}  // namespace

std::unique_ptr<ShardExchange> make_window_exchange(Comm comm, std::vector<SlotGeometry> stages,
                                                    const ExchangeOptions& options) {
  return std::make_unique<WindowExchange>(std::move(comm), std::move(stages), options);
}

}  // namespace trireme::comm
