// The exchange of ranks that share memory inside their node: every weight is stored once in a
// window on every node. On one node gathering moves nothing. Between nodes only updates are sent:
// each rank sends its slices to one rank of every other node, as many messages as nodes, and so a
// node takes each byte from the network once; a stage is waited for when it is first asked for.
//
// Gradients are written to each rank's own part of a second window and summed in rank order, so
// that their bits do not depend on the nodes. On one node the owner of a slice adds all parts by
// direct reads. Between nodes a running sum goes from node to node for each owner. On each node one
// rank takes it over, adds its node's gradients by direct reads and sends it on; from the last node
// it goes to the owner. A thread does that while the stage before is computed. A sum that travels
// in bf16 is rounded after each node: its bits depend on the nodes, too.
//
// Counters in the window, each written by one rank. Reductions have the same order on every rank,
// so one number says which:
//   ready    reductions whose gradients it has written
//            (release after the gradients, acquire before reading them)
//   done     reductions in which it has read its node's parts
//            (release after reading, acquire before overwriting)
//   arrived  by stage: updates of which it has its messages
//            (release after the last of them, acquire before reading)
#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <limits>
#include <new>
#include <utility>

#include "comm/mpi_support.hpp"
#include "comm/shard_exchange_parts.hpp"
#include "comm/shared_counter.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::comm {
namespace {

constexpr int weights_tag = static_cast<int>(Tag::weights),
              sum_tag = static_cast<int>(Tag::running_sum),
              total_tag = static_cast<int>(Tag::gradient_total);

// Ranks by node; those of a node follow each other.
struct Nodes {
  explicit Nodes(const NodeTopology& topology)
      : node_of(topology.node_of),
        first(static_cast<size_t>(topology.nodes), -1),
        size(first.size(), 0) {
    for (size_t rank = 0; rank < node_of.size(); ++rank) {
      const auto node = static_cast<size_t>(node_of[rank]);
      if (size[node]++ == 0) first[node] = static_cast<int>(rank);
    }
  }
  int count() const { return static_cast<int>(first.size()); }
  // Who takes what is rank `other`'s on a node: weights from it, sums for it. It itself on its own.
  int agent(int node, int other) const {
    const auto n = static_cast<size_t>(node);
    return node_of[static_cast<size_t>(other)] == node ? other : first[n] + other % size[n];
  }
  std::vector<int> node_of, first, size;
};

class NodeExchange final : public ShardExchange {
 public:
  NodeExchange(Comm comm, const NodeTopology& topology, std::vector<SlotGeometry> stages,
               const ExchangeOptions& options)
      : comm_(std::move(comm)),
        nodes_(topology),
        sums_(several() ? Comm::duplicate(comm_, comm_->name() + " sums") : Comm()),
        mates_(several() ? Comm::split(comm_, topology.node, comm_->rank(), comm_->name() + " node")
                         : Comm()),
        node_(several() ? mates_.view() : comm_.view()),
        here_(topology.node),
        options_(options),
        storage_(stages, comm_->size()),
        layout_(std::move(stages), options.weight_type),
        arrived_(static_cast<size_t>(layout_.stages()), 0),
        requests_(arrived_.size()),
        last_use_(arrived_.size(), 0) {
    list_new_parameters();
    if (!several()) {
      open_windows();
      return;
    }
    VALIDATE(layout_.largest_slice() <= std::numeric_limits<int>::max(), ExitCode::configuration,
             "one rank would send ", layout_.largest_slice(),
             " values of a stage to another in one message, more than MPI counts: use more ranks "
             "per shard group");
    fail_together(comm_, [this] { open_windows(); });
  }
  // No rank unmaps memory of another: a page of a live memory file stays valid for the others, so
  // no barrier is needed here; the communicator's end is collective.
  ~NodeExchange() override {
    if (reduction_.valid()) reduction_.wait();
    for (auto& requests : requests_)
      MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
    MPI_Waitall(static_cast<int>(sending_.size()), sending_.data(), MPI_STATUSES_IGNORE);
  }

  std::byte* own_slice(size_t parameter) override { return slice(parameter, comm_->rank()); }
  const std::byte* whole(size_t parameter) const override {
    return several() ? nullptr : weight(parameter);
  }
  void begin_update() override;
  void end_update() override;
  void gather(int stage) override;
  std::vector<std::byte*> gathered(int stage) override;
  void release(int) override {}
  bool holds(int) const override { return true; }
  std::vector<float*> gradients(int stage) override;
  void reduce(int stage) override;
  void finish_reduce(int stage, const std::vector<float*>& into) override;
  const ExchangeCounters& counters() const override { return counters_; }
  std::string kind() const override {
    if (several())
      return base::text("a window on each of ", nodes_.count(), " nodes (", weights_.kind(),
                        "), new weights once a node");
    const bool alike = !gradients_.valid() || gradients_.kind() == weights_.kind();
    return base::text("shared window (", weights_.kind(),
                      alike ? "" : "; gradients: " + gradients_.kind(), ")");
  }

 private:
  bool several() const { return nodes_.count() > 1; }
  std::byte* weight(size_t parameter) const {
    return weights_.part(0) + control_bytes() +
           storage_.offset[parameter] * layout_.element_bytes();
  }
  std::byte* slice(size_t parameter, int rank) const {
    return weight(parameter) + rank * storage_.per_rank[parameter] * layout_.element_bytes();
  }
  // Of rank `mate` of this node. 0: ready, 1: done, then those of the stages.
  int64_t control_bytes() const {
    return base::round_up<int64_t>(
        (2 + layout_.stages()) * static_cast<int64_t>(sizeof(SharedCounter)), 4096);
  }
  SharedCounter& counter(int mate, int index) const {
    return reinterpret_cast<SharedCounter*>(weights_.part(mate))[index];
  }
  SharedCounter& ready(int mate) const { return counter(mate, 0); }
  SharedCounter& done(int mate) const { return counter(mate, 1); }
  SharedCounter& arrived(int mate, int stage) const { return counter(mate, 2 + stage); }
  float* gradient_base(int mate, int stage) const {
    return layout_.gradients(gradients_.part(mate), stage);
  }
  MPI_Comm handle() const { return static_cast<MPI_Comm>(comm_->native()); }

  void list_new_parameters();
  void open_windows();
  MPI_Datatype slices_of(int stage, int rank) const;
  void complete(int stage);
  void wait_until(const SharedCounter& counter, uint64_t value) {
    counters_.wait_seconds += wait_for_counter(comm_, counter, value);
  }
  void barrier(const CommView& ranks) const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    ranks.barrier();
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void sum(int stage, uint64_t number);
  void take_total(int stage, const std::vector<float*>& into);
  void add_parts(int stage, const std::vector<float*>& into);
  Sources parts(int stage, const SlotParameter& parameter, int owner) const;
  void add_node(std::byte* sum, int stage, int owner, bool onto) const;
  int64_t reduced_element() const { return static_cast<int64_t>(size_of(options_.reduce_type)); }

  Comm comm_;
  Nodes nodes_;
  Comm sums_, mates_;  // null on one node
  CommView node_;      // the ranks of this node
  int here_;
  ExchangeOptions options_;
  ParameterStorage storage_;
  RingLayout layout_;                            // of the gradients, and the order of reductions
  std::vector<std::vector<SlotParameter>> new_;  // by stage: parameters that no earlier stage has
  std::vector<std::vector<int>> needs_;  // by stage: the stages whose messages bring its parameters
  SharedWindow weights_, gradients_;
  std::array<HugeBuffer, 3> buffers_;  // sums of two owners, and this rank's total; several nodes
  uint64_t update_ = 0;
  std::vector<uint64_t>
      arrived_;  // by stage: the update that this rank has seen on all of its node
  std::vector<std::vector<MPI_Request>> requests_;  // by stage: receives of this rank
  std::vector<MPI_Request> sending_;
  std::vector<uint64_t> last_use_;  // by stage: number of its last reduction, from 1; 0: none
  uint64_t begun_ = 0;
  std::future<void> reduction_;
  std::atomic<int64_t> received_{0};  // bytes of sums
  ExchangeCounters counters_;
};

void NodeExchange::list_new_parameters() {
  std::vector<int> stage_of(storage_.offset.size(), -1);
  for (int stage = 0; stage < layout_.stages(); ++stage) {
    auto& fresh = new_.emplace_back();
    auto& needs = needs_.emplace_back();
    for (const auto& parameter : layout_.parameters(stage)) {
      int& home = stage_of[parameter.id];
      if (home < 0) {
        home = stage;
        fresh.push_back(parameter);
      }
      if (std::find(needs.begin(), needs.end(), home) == needs.end()) needs.push_back(home);
    }
  }
}

// The weights are one rank's part, so that every parameter is contiguous across the ranks' slices.
// All ranks read all of them: their pages are dealt to the NUMA nodes of all. Gradient slots are
// written and zeroed by their owner: they are on its NUMA node.
void NodeExchange::open_windows() {
  const int64_t weights = storage_.elements * layout_.element_bytes();
  weights_ = SharedWindow(node_, control_bytes() + (node_.rank() == 0 ? weights : 0),
                          "trireme-weights", Placement::dealt);
  counters_.weight_memory = base::ceil_div(weights, static_cast<int64_t>(node_.size()));
  for (int index = 0; index < 2 + layout_.stages(); ++index)
    new (&counter(node_.rank(), index)) SharedCounter{};
  if (!layout_.has_gradients()) return;
  gradients_ = SharedWindow(node_, layout_.gradient_bytes(), "trireme-gradients");
  const int64_t slice = several() ? layout_.largest_slice() * reduced_element() : 0;
  for (auto& buffer : buffers_) buffer = HostBuffer(slice);
  counters_.gradient_memory =
      layout_.gradient_bytes() + static_cast<int64_t>(buffers_.size()) * slice;
}

// Rank `rank`'s slices of a stage's new parameters, relative to the first weight.
MPI_Datatype NodeExchange::slices_of(int stage, int rank) const {
  std::vector<int> lengths;
  std::vector<MPI_Aint> offsets;
  for (const auto& parameter : new_[static_cast<size_t>(stage)]) {
    lengths.push_back(base::checked_cast<int>(parameter.per_rank));
    offsets.push_back(slice(parameter.id, rank) - weights_.part(0));
  }
  MPI_Datatype type = MPI_DATATYPE_NULL;
  TRIREME_MPI(MPI_Type_create_hindexed(static_cast<int>(lengths.size()), lengths.data(),
                                       offsets.data(), to_mpi(options_.weight_type), &type));
  TRIREME_MPI(MPI_Type_commit(&type));
  return type;
}

// Everybody has what the last update sent, and has read it.
void NodeExchange::begin_update() {
  for (int stage = 0; stage < layout_.stages(); ++stage) complete(stage);
  TRIREME_MPI(MPI_Waitall(static_cast<int>(sending_.size()), sending_.data(), MPI_STATUSES_IGNORE));
  sending_.clear();
  barrier(comm_);
}

void NodeExchange::end_update() {
  barrier(node_);
  if (!several()) return;
  ++update_;
  const int me = comm_->rank();
  for (int stage = 0; stage < layout_.stages(); ++stage) {
    if (new_[static_cast<size_t>(stage)].empty()) continue;
    int64_t bytes = 0;
    for (const auto& parameter : new_[static_cast<size_t>(stage)])
      bytes += parameter.per_rank * layout_.element_bytes();
    for (int rank = 0; rank < comm_->size(); ++rank) {
      if (nodes_.node_of[static_cast<size_t>(rank)] == here_ || nodes_.agent(here_, rank) != me)
        continue;
      MPI_Datatype type = slices_of(stage, rank);
      auto& requests = requests_[static_cast<size_t>(stage)];
      requests.push_back(MPI_REQUEST_NULL);
      TRIREME_MPI(
          MPI_Irecv(weights_.part(0), 1, type, rank, weights_tag, handle(), &requests.back()));
      TRIREME_MPI(MPI_Type_free(&type));  // after the message, says the standard
      counters_.gathered_bytes += bytes;
    }
    MPI_Datatype type = slices_of(stage, me);
    for (int step = 1; step < nodes_.count(); ++step) {
      const int node = (here_ + step) % nodes_.count();
      sending_.push_back(MPI_REQUEST_NULL);
      TRIREME_MPI(MPI_Isend(weights_.part(0), 1, type, nodes_.agent(node, me), weights_tag,
                            handle(), &sending_.back()));
    }
    TRIREME_MPI(MPI_Type_free(&type));
  }
}

// This rank's messages of a stage are here, and its mates are told.
void NodeExchange::complete(int stage) {
  auto& requests = requests_[static_cast<size_t>(stage)];
  if (!requests.empty()) {
    trace::Region region{"wait for neighbours", trace::no_argument, trace::Category::wait};
    const base::Stopwatch watch;
    TRIREME_MPI(
        MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
    requests.clear();
    counters_.wait_seconds += watch.seconds();
  }
  arrived(node_.rank(), stage).value.store(update_, std::memory_order_release);
}

// MPI moves on only while it is called.
void NodeExchange::gather(int stage) {
  ++counters_.gathers;
  auto& requests = requests_[static_cast<size_t>(stage)];
  if (requests.empty()) return;
  int all = 0;
  TRIREME_MPI(
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE));
  if (all == 0) return;
  requests.clear();
  complete(stage);
}

std::vector<std::byte*> NodeExchange::gathered(int stage) {
  for (const int home : needs_[static_cast<size_t>(stage)]) {
    uint64_t& seen = arrived_[static_cast<size_t>(home)];
    if (seen == update_) continue;
    complete(home);
    for (int mate = 0; mate < node_.size(); ++mate) wait_until(arrived(mate, home), update_);
    seen = update_;
  }
  std::vector<std::byte*> pointers;
  for (const auto& parameter : layout_.parameters(stage)) pointers.push_back(weight(parameter.id));
  return pointers;
}

std::vector<float*> NodeExchange::gradients(int stage) {
  EXPECT(layout_.has_gradients());
  layout_.may_write_gradients(stage);
  uint64_t needed = 0;
  for (int other = 0; other < layout_.stages(); ++other) {
    if (layout_.overlap(stage, other))
      needed = std::max(needed, last_use_[static_cast<size_t>(other)]);
  }
  for (int mate = 0; mate < node_.size(); ++mate) wait_until(done(mate), needed);
  return layout_.gradient_pointers(gradients_.part(node_.rank()), stage);
}

void NodeExchange::reduce(int stage) {
  layout_.begin_reduction(stage);
  if (options_.reduce_type == DType::bf16)
    round_in_place(gradient_base(node_.rank(), stage), layout_.gradient_slot(stage).elements,
                   options_.parallel_for);
  last_use_[static_cast<size_t>(stage)] = ++begun_;
  ready(node_.rank()).value.store(begun_, std::memory_order_release);
  if (!several()) return;
  reduction_ =
      std::async(std::launch::async, [this, stage, number = begun_] { sum(stage, number); });
}

// Slices of rank `owner` in the gradients of this node's ranks.
Sources NodeExchange::parts(int stage, const SlotParameter& parameter, int owner) const {
  const int64_t offset = (parameter.offset + owner * parameter.per_rank) * reduced_element();
  Sources out;
  for (int mate = 0; mate < node_.size(); ++mate)
    out.push_back(reinterpret_cast<const std::byte*>(gradient_base(mate, stage)) + offset);
  return out;
}

// The part of this node in the sum for `owner`, packed by parameter: onto what came, or as its
// beginning.
void NodeExchange::add_node(std::byte* sum, int stage, int owner, bool onto) const {
  for (const auto& parameter : layout_.gradient_slot(stage).parameters) {
    sum_in_order(sum, options_.reduce_type, onto, parts(stage, parameter, owner),
                 parameter.per_rank);
    sum += parameter.per_rank * reduced_element();
  }
}

// Owners ascend on every node: the lowest one that is not finished finds all of its ranks free, or
// busy with it.
void NodeExchange::sum(int stage, uint64_t number) {
  for (int mate = 0; mate < node_.size(); ++mate) {
    wait_for([&] { return ready(mate).reached(number); },
             [] {});  // without MPI: that belongs to the thread that computes
  }
  const int me = comm_->rank(), last = nodes_.count() - 1;
  const auto count = static_cast<int>(layout_.slice_elements(stage));
  const auto comm = static_cast<MPI_Comm>(sums_->native());
  MPI_Datatype type = to_mpi(options_.reduce_type);
  const auto buffer = [this](size_t i) { return buffers_[i].data(); };
  std::array<MPI_Request, 3> requests{MPI_REQUEST_NULL, MPI_REQUEST_NULL,
                                      MPI_REQUEST_NULL};  // of the buffers
  if (here_ != last)
    TRIREME_MPI(
        MPI_Irecv(buffer(2), count, type, nodes_.agent(last, me), total_tag, comm, &requests[2]));
  size_t turn = 0;
  for (int owner = 0; owner < comm_->size(); ++owner) {
    if (nodes_.agent(here_, owner) != me) continue;
    const bool stays = here_ == last && owner == me;
    const size_t use = stays ? 2 : turn++ % 2;
    TRIREME_MPI(MPI_Wait(&requests[use], MPI_STATUS_IGNORE));
    if (here_ > 0) {
      TRIREME_MPI(MPI_Recv(buffer(use), count, type, nodes_.agent(here_ - 1, owner), sum_tag, comm,
                           MPI_STATUS_IGNORE));
      received_ += count * reduced_element();
    }
    add_node(buffer(use), stage, owner, here_ > 0);
    if (stays) continue;
    const bool ends = here_ == last;
    TRIREME_MPI(MPI_Isend(buffer(use), count, type, ends ? owner : nodes_.agent(here_ + 1, owner),
                          ends ? total_tag : sum_tag, comm, &requests[use]));
  }
  done(node_.rank()).value.store(number, std::memory_order_release);
  TRIREME_MPI(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
  if (here_ != last) received_ += count * reduced_element();
}

void NodeExchange::finish_reduce(int stage, const std::vector<float*>& into) {
  layout_.end_reduction(stage);
  EXPECT(into.size() == layout_.gradient_slot(stage).parameters.size());
  several() ? take_total(stage, into) : add_parts(stage, into);
  ++counters_.reductions;
}

// On one node: of all ranks, by direct reads.
void NodeExchange::add_parts(int stage, const std::vector<float*>& into) {
  const uint64_t number = last_use_[static_cast<size_t>(stage)];
  for (int mate = 0; mate < node_.size(); ++mate) wait_until(ready(mate), number);
  trace::Region region{"sum gradients", stage, trace::Category::communication};
  const auto& parameters = layout_.gradient_slot(stage).parameters;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const int64_t count = parameters[p].per_rank;
    add_in_order(into[p], options_.reduce_type, parts(stage, parameters[p], comm_->rank()), count,
                 options_.parallel_for);
    const int64_t bytes = (comm_->size() - 1) * count * reduced_element();
    region.add_bytes(bytes);
    counters_.reduced_bytes += bytes;
  }
  done(node_.rank()).value.store(number, std::memory_order_release);
}

void NodeExchange::take_total(int stage, const std::vector<float*>& into) {
  {
    trace::Region region{"sum gradients", stage, trace::Category::communication};
    const base::Stopwatch watch;
    reduction_.get();
    counters_.wait_seconds += watch.seconds();
    region.add_bytes(received_.load() - counters_.reduced_bytes);
    counters_.reduced_bytes = received_.load();
  }
  const auto& parameters = layout_.gradient_slot(stage).parameters;
  const std::byte* total = buffers_[2].data();
  for (size_t p = 0; p < parameters.size(); ++p) {
    add_in_order(into[p], options_.reduce_type, {total}, parameters[p].per_rank,
                 options_.parallel_for);
    total += parameters[p].per_rank * reduced_element();
  }
}

}  // namespace

bool ranks_follow_nodes(const NodeTopology& topology) {
  return std::is_sorted(topology.node_of.begin(), topology.node_of.end());
}

std::unique_ptr<ShardExchange> make_node_exchange(Comm comm, std::vector<SlotGeometry> stages,
                                                  const ExchangeOptions& options) {
  const NodeTopology topology = discover(comm);
  const auto make = [&] {
    return std::make_unique<NodeExchange>(std::move(comm), topology, std::move(stages), options);
  };
  if (topology.nodes == 1) return make();
  VALIDATE(ranks_follow_nodes(topology), ExitCode::unfit_environment,
           "the ranks of a node do not follow each other (",
           "the launcher deals them out in turn): start them node by node, with mpirun --map-by "
           "slot or srun --distribution=block");
  int provided = MPI_THREAD_SINGLE;
  TRIREME_MPI(MPI_Query_thread(&provided));
  VALIDATE(provided == MPI_THREAD_MULTIPLE, ExitCode::unfit_environment,
           "this MPI library does not let several threads call it (MPI_THREAD_MULTIPLE)");
  return make();
}

}  // namespace trireme::comm
