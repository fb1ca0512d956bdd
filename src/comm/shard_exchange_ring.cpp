#include "comm/shard_exchange_ring.hpp"

#include <cstring>
#include <limits>
#include <utility>

#include "comm/mpi_support.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::comm {
namespace {

constexpr int gradients_tag = static_cast<int>(Tag::gradients);

std::shared_ptr<std::byte> host_memory(int64_t bytes) {
  const auto buffer = std::make_shared<HostBuffer>(bytes);
  return {buffer, buffer->data()};
}

RingMemory::Bytes ring_bytes(const RingLayout& layout, const ExchangeOptions& options, int ranks) {
  VALIDATE(layout.largest_slice() <= std::numeric_limits<int>::max(), ExitCode::configuration,
           "one rank would send ", layout.largest_slice(),
           " values of a stage to another in one message, more than MPI counts: use more ranks per "
           "shard group");
  return layout.ring_bytes(ranks - 1, options.reduce_type);
}

}  // namespace

MpiRingExchange::MpiRingExchange(Comm comm, std::vector<SlotGeometry> stages,
                                 const ExchangeOptions& options)
    : comm_(std::move(comm)),
      options_(options),
      layout_(std::move(stages), options.weight_type),
      own_(layout_.own_bytes()),
      ring_(options, *this, ring_bytes(layout_, options, comm_->size()), host_memory, counters_),
      gathering_(static_cast<size_t>(layout_.stages())) {
  counters_.weight_memory += own_.bytes();
}

MpiRingExchange::~MpiRingExchange() {
  for (auto& requests : gathering_) {
    if (!requests.empty())
      MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  }
  if (!reducing_.empty())
    MPI_Waitall(static_cast<int>(reducing_.size()), reducing_.data(), MPI_STATUSES_IGNORE);
}

// Gathers ahead still arrive: the next exchange may not write under it.
void MpiRingExchange::leave() {
  layout_.may_leave();
  for (auto& requests : gathering_) wait(requests);
  layout_.forget();
}

std::vector<std::span<std::byte>> MpiRingExchange::buffers() const {
  std::vector<std::span<std::byte>> out{{own_.data(), static_cast<size_t>(own_.bytes())}};
  for (const auto part : {RingMemory::weights, RingMemory::gradients, RingMemory::received}) {
    out.emplace_back(ring_[part], static_cast<size_t>(ring_.memory->bytes(part)));
  }
  return out;
}

void MpiRingExchange::wait(std::vector<MPI_Request>& requests) {
  if (requests.empty()) return;
  trace::Region region{"wait for neighbours", trace::no_argument, trace::Category::wait};
  const base::Stopwatch watch;
  TRIREME_MPI(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
  requests.clear();
  counters_.wait_seconds += watch.seconds();
}

// A gather begun with the old values must have read them before the owner overwrites them.
void MpiRingExchange::begin_update() {
  for (auto& requests : gathering_) wait(requests);
  layout_.forget();
}

void MpiRingExchange::gather(int stage) {
  ring_.take();
  if (layout_.holds(stage)) return;
  layout_.occupy(stage);
  trace::Region region{"gather", stage, trace::Category::communication};
  auto& requests = gathering_[static_cast<size_t>(stage)];
  for (const auto& parameter : layout_.parameters(stage)) {
    const int64_t bytes = parameter.per_rank * layout_.element_bytes();
    std::byte* whole = layout_.weights(ring_[RingMemory::weights], stage) +
                       parameter.offset * layout_.element_bytes();
    std::memcpy(whole + comm_->rank() * bytes, own_slice(parameter.id), static_cast<size_t>(bytes));
    if (comm_->size() == 1) continue;
    requests.push_back(MPI_REQUEST_NULL);
    TRIREME_MPI(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, whole,
                               base::checked_cast<int>(parameter.per_rank),
                               to_mpi(options_.weight_type), handle(), &requests.back()));
    region.add_bytes((comm_->size() - 1) * bytes);
    counters_.gathered_bytes += (comm_->size() - 1) * bytes;
  }
  ++counters_.gathers;
}

std::vector<std::byte*> MpiRingExchange::gathered(int stage) {
  layout_.use(stage);
  wait(gathering_[static_cast<size_t>(stage)]);
  return layout_.weight_pointers(ring_[RingMemory::weights], stage);
}

std::vector<float*> MpiRingExchange::gradients(int stage) {
  EXPECT(layout_.has_gradients());
  ring_.take();
  layout_.may_write_gradients(stage);
  return layout_.gradient_pointers(ring_[RingMemory::gradients], stage);
}

MPI_Datatype MpiRingExchange::slices_of(int stage, int to) const {
  std::vector<int> lengths;
  std::vector<MPI_Aint> offsets;
  for (const auto& parameter : layout_.gradient_slot(stage).parameters) {
    lengths.push_back(base::checked_cast<int>(parameter.per_rank));
    offsets.push_back(
        static_cast<MPI_Aint>((parameter.offset + to * parameter.per_rank) * reduced_element()));
  }
  MPI_Datatype type = MPI_DATATYPE_NULL;
  TRIREME_MPI(MPI_Type_create_hindexed(static_cast<int>(lengths.size()), lengths.data(),
                                       offsets.data(), to_mpi(options_.reduce_type), &type));
  TRIREME_MPI(MPI_Type_commit(&type));
  return type;
}

// Slices travel to their owners and are summed there in rank order: the bits do not depend on MPI's
// algorithms.
void MpiRingExchange::reduce(int stage) {
  layout_.begin_reduction(stage);
  trace::Region region{"send gradients", stage, trace::Category::communication};
  const int64_t count = layout_.slice_elements(stage);
  for (int step = 1; step < comm_->size(); ++step) {
    const int from = (comm_->rank() + step) % comm_->size();
    reducing_.push_back(MPI_REQUEST_NULL);
    TRIREME_MPI(MPI_Irecv(received_from(from, count), static_cast<int>(count),
                          to_mpi(options_.reduce_type), from, gradients_tag, handle(),
                          &reducing_.back()));
  }
  if (options_.reduce_type == DType::bf16)
    round_in_place(gradient_base(stage), layout_.gradient_slot(stage).elements,
                   options_.parallel_for);
  for (int step = 1; step < comm_->size(); ++step) {
    const int to = (comm_->rank() + comm_->size() - step) % comm_->size();
    MPI_Datatype type = slices_of(stage, to);
    reducing_.push_back(MPI_REQUEST_NULL);
    TRIREME_MPI(
        MPI_Isend(gradient_base(stage), 1, type, to, gradients_tag, handle(), &reducing_.back()));
    TRIREME_MPI(MPI_Type_free(&type));  // after the send, says the standard
    region.add_bytes(count * reduced_element());
  }
}

void MpiRingExchange::finish_reduce(int stage, const std::vector<float*>& into) {
  layout_.end_reduction(stage);
  wait(reducing_);
  const auto& parameters = layout_.gradient_slot(stage).parameters;
  EXPECT(into.size() == parameters.size());
  const int64_t count = layout_.slice_elements(stage);
  const auto* own = reinterpret_cast<const std::byte*>(gradient_base(stage));
  Sources sources(static_cast<size_t>(comm_->size()));
  int64_t packed = 0;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const auto& parameter = parameters[p];
    for (int rank = 0; rank < comm_->size(); ++rank) {
      sources[static_cast<size_t>(rank)] =
          rank == comm_->rank()
              ? own + (parameter.offset + rank * parameter.per_rank) * reduced_element()
              : received_from(rank, count) + packed * reduced_element();
    }
    add_in_order(into[p], options_.reduce_type, sources, parameter.per_rank, options_.parallel_for);
    packed += parameter.per_rank;
  }
  ++counters_.reductions;
  counters_.reduced_bytes += (comm_->size() - 1) * count * reduced_element();
}

std::unique_ptr<ShardExchange> make_ring_exchange(Comm comm, std::vector<SlotGeometry> stages,
                                                  const ExchangeOptions& options) {
  return std::make_unique<MpiRingExchange>(std::move(comm), std::move(stages), options);
}

}  // namespace trireme::comm
