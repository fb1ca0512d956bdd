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

constexpr int64_t kFloat = sizeof(float);

int64_t slice_elements(const SlotGeometry& slot) {
  int64_t sum = 0;
  for (const auto& parameter : slot.parameters) sum += parameter.per_rank;
  return sum;
}

}  // namespace

MpiRingExchange::MpiRingExchange(Comm comm, std::vector<SlotGeometry> stages, const ExchangeOptions& options)
    : comm_(std::move(comm)), stages_(std::move(stages)), options_(options), arena_(stages_), ring_(arena_),
      storage_(stages_, 1), element_(static_cast<int64_t>(size_of(options.weight_type))), gathering_(stages_.size()) {
  const int64_t largest = largest_slice(stages_);
  VALIDATE(largest <= std::numeric_limits<int>::max(), ExitCode::configuration, "one rank would send ", largest,
           " values of a stage to another in one message, more than MPI counts: use more ranks per shard group");
  own_ = HostBuffer(storage_.elements * element_);
  weights_ = HostBuffer(arena_.elements() * element_);
  counters_.weight_memory = own_.bytes() + weights_.bytes();
  if (!options_.gradients) return;
  gradients_ = HostBuffer(arena_.elements() * kFloat);
  received_ = HostBuffer((comm_->size() - 1) * largest * kFloat);
  counters_.gradient_memory = gradients_.bytes() + received_.bytes();
}

MpiRingExchange::~MpiRingExchange() {
  for (auto& requests : gathering_) {
    if (!requests.empty()) MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  }
  if (!reducing_.empty()) MPI_Waitall(static_cast<int>(reducing_.size()), reducing_.data(), MPI_STATUSES_IGNORE);
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
  ring_.forget();
}

void MpiRingExchange::gather(int stage) {
  if (ring_.holds(stage)) return;
  ring_.occupy(stage);
  trace::Region region{"gather", stage, trace::Category::communication};
  auto& requests = gathering_[static_cast<size_t>(stage)];
  for (const auto& parameter : slot(stage).parameters) {
    const int64_t bytes = parameter.per_rank * element_;
    std::byte* whole = weight_base(stage) + parameter.offset * element_;
    std::memcpy(whole + comm_->rank() * bytes, own_slice(parameter.id), static_cast<size_t>(bytes));
    if (comm_->size() == 1) continue;
    requests.push_back(MPI_REQUEST_NULL);
    TRIREME_MPI(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, whole, base::checked_cast<int>(parameter.per_rank),
                               to_mpi(options_.weight_type), handle(), &requests.back()));
    region.add_bytes((comm_->size() - 1) * bytes);
    counters_.gathered_bytes += (comm_->size() - 1) * bytes;
  }
  ++counters_.gathers;
}

std::vector<std::byte*> MpiRingExchange::gathered(int stage) {
  if (!ring_.holds(stage)) throw InternalError(base::text("stage ", stage, " is used without a gather"));
  wait(gathering_[static_cast<size_t>(stage)]);
  ring_.use(stage);
  std::vector<std::byte*> pointers;
  for (const auto& parameter : slot(stage).parameters) {
    pointers.push_back(weight_base(stage) + parameter.offset * element_);
  }
  return pointers;
}

std::vector<float*> MpiRingExchange::gradients(int stage) {
  EXPECT(options_.gradients);
  if (reducing_stage_ >= 0 && arena_.overlap(stage, reducing_stage_)) {
    throw InternalError(base::text("gradients of stage ", stage, " over those of stage ", reducing_stage_,
                                   ", whose reduction is not finished"));
  }
  float* base = gradient_base(stage);
  zero_fill(base, slot(stage).elements, options_.parallel_for);
  std::vector<float*> pointers;
  for (const auto& parameter : slot(stage).parameters) pointers.push_back(base + parameter.offset);
  return pointers;
}

MPI_Datatype MpiRingExchange::slices_of(int stage, int to) const {
  std::vector<int> lengths;
  std::vector<MPI_Aint> offsets;
  for (const auto& parameter : slot(stage).parameters) {
    lengths.push_back(base::checked_cast<int>(parameter.per_rank));
    offsets.push_back(static_cast<MPI_Aint>((parameter.offset + to * parameter.per_rank) * kFloat));
  }
  MPI_Datatype type = MPI_DATATYPE_NULL;
  TRIREME_MPI(MPI_Type_create_hindexed(static_cast<int>(lengths.size()), lengths.data(), offsets.data(), MPI_FLOAT, &type));
  TRIREME_MPI(MPI_Type_commit(&type));
  return type;
}

// Slices travel to their owners and are summed there in rank order: the bits do not depend on MPI's algorithms.
void MpiRingExchange::reduce(int stage) {
  if (reducing_stage_ >= 0) throw InternalError("a reduction was begun before the last one was finished");
  reducing_stage_ = stage;
  trace::Region region{"send gradients", stage, trace::Category::communication};
  const int64_t count = slice_elements(slot(stage));
  auto* into = reinterpret_cast<float*>(received_.data());
  for (int step = 1; step < comm_->size(); ++step) {
    const int from = (comm_->rank() + step) % comm_->size();
    float* place = into + (from < comm_->rank() ? from : from - 1) * count;
    reducing_.push_back(MPI_REQUEST_NULL);
    TRIREME_MPI(MPI_Irecv(place, static_cast<int>(count), MPI_FLOAT, from, 0, handle(), &reducing_.back()));
  }
  for (int step = 1; step < comm_->size(); ++step) {
    const int to = (comm_->rank() + comm_->size() - step) % comm_->size();
    MPI_Datatype type = slices_of(stage, to);
    reducing_.push_back(MPI_REQUEST_NULL);
    TRIREME_MPI(MPI_Isend(gradient_base(stage), 1, type, to, 0, handle(), &reducing_.back()));
    TRIREME_MPI(MPI_Type_free(&type));  // after the send, says the standard
    region.add_bytes(count * kFloat);
  }
}

void MpiRingExchange::finish_reduce(int stage, const std::vector<float*>& into) {
  if (stage != reducing_stage_) throw InternalError(base::text("the reduction of stage ", stage, " was not begun"));
  wait(reducing_);
  const auto& geometry = slot(stage);
  EXPECT(into.size() == geometry.parameters.size());
  const int64_t count = slice_elements(geometry);
  const auto* received = reinterpret_cast<const float*>(received_.data());
  std::vector<const float*> sources(static_cast<size_t>(comm_->size()));
  int64_t packed = 0;
  for (size_t p = 0; p < geometry.parameters.size(); ++p) {
    const auto& parameter = geometry.parameters[p];
    for (int rank = 0; rank < comm_->size(); ++rank) {
      sources[static_cast<size_t>(rank)] =
          rank == comm_->rank() ? gradient_base(stage) + parameter.offset + rank * parameter.per_rank
                                : received + (rank < comm_->rank() ? rank : rank - 1) * count + packed;
    }
    add_in_order(into[p], sources, parameter.per_rank, options_.parallel_for);
    packed += parameter.per_rank;
  }
  reducing_stage_ = -1;
  ++counters_.reductions;
  counters_.reduced_bytes += (comm_->size() - 1) * count * kFloat;
}

std::unique_ptr<ShardExchange> make_ring_exchange(Comm comm, std::vector<SlotGeometry> stages, const ExchangeOptions& options) {
  return std::make_unique<MpiRingExchange>(std::move(comm), std::move(stages), options);
}

}  // namespace trireme::comm
