// The exchange between GPUs. All communication is enqueued on one stream of its own; events tie it
// to the compute stream:
//   gather   waits for all compute enqueued so far (the slot's last reader), compute waits for the
//   gather in gathered() reduce   waits for the stage's backward finish   waits for what wrote into
//   the sums until then; compute waits for it
// The host waits for NCCL to enqueue, for nothing that runs on the device. One stream is enough:
// NCCL runs the kernels of a communicator, and of all that share its connections, one after the
// other.
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/cuda_support.hpp"
#include "comm/device_messages_nccl.hpp"
#include "comm/event_clock.hpp"
#include "comm/nccl_comm.hpp"
#include "comm/nccl_links.hpp"
#include "comm/rank_sums_nccl.hpp"
#include "comm/shard_exchange_parts.hpp"
#include "comm/shard_exchange_staged.hpp"
#include "comm/stream_waits.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/comm/device_exchange.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::comm {
namespace {

std::shared_ptr<std::byte> registered_memory(int64_t bytes) {
  const auto buffer = std::make_shared<DeviceBuffer>(bytes, DeviceBuffer::Kind::registered);
  return {buffer, buffer->data()};
}

class NcclRingExchange final : public ShardExchange, private RingMemory::Tenant {
 public:
  NcclRingExchange(Comm comm, std::vector<SlotGeometry> stages, const ExchangeOptions& options)
      : comm_(std::move(comm)),
        options_(options),
        layout_(std::move(stages), options.weight_type),
        compute_(static_cast<cudaStream_t>(options.compute_stream)),
        waits_(compute_),
        gathered_(static_cast<size_t>(layout_.stages())),
        own_(layout_.own_bytes(), DeviceBuffer::Kind::plain),
        ring_(options, *this, layout_.ring_bytes(1, options.reduce_type), registered_memory,
              counters_),
        nccl_(comm_) {
    counters_.weight_memory += own_.bytes();
  }
  ~NcclRingExchange() override {
    // Collectives whose other ranks will not come would be waited for, by this and by all that
    // frees memory of the device.
    if (std::uncaught_exceptions() > 0) NcclComm::abort_all();
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaStreamSynchronize(compute_));  // ncclMemFree waits for nobody
  }

  std::byte* own_slice(size_t parameter) override {
    return layout_.own_slice(own_.data(), parameter);
  }
  void begin_update() override {
    layout_.forget();
    follow(compute_, stream_);
  }
  void end_update() override {}  // the next gather waits for the compute stream

  void gather(int stage) override;
  std::vector<std::byte*> gathered(int stage) override;
  void release(int stage) override { layout_.release(stage); }
  bool holds(int stage) const override { return layout_.holds(stage); }
  std::vector<float*> gradients(int stage) override;
  void reduce(int stage) override;
  void finish_reduce(int stage, const std::vector<float*>& into) override;
  void* stream() override { return stream_; }
  void join() override {
    order_.record(stream_);
    compute_waits_for(order_);
  }
  const ExchangeCounters& counters() const override { return counters_; }
  std::string kind() const override { return "NCCL ring"; }

 private:
  void leave() override;
  void lose() override;
  void take_ring();  // and makes it known to NCCL
  void round_gradients(int stage);
  int64_t reduced_element() const { return static_cast<int64_t>(size_of(options_.reduce_type)); }
  // Work enqueued on `later` from now on waits for the work on `earlier`.
  void follow(cudaStream_t later, cudaStream_t earlier) {
    order_.record(earlier);
    order_.block(later);
  }

  void compute_waits_for(const Event& event) {
    waits_.wait_for(event);
    counters_.wait_seconds = waits_.seconds();
  }

  Comm comm_;
  ExchangeOptions options_;
  RingLayout layout_;
  cudaStream_t compute_;
  StreamWaits waits_;            // of compute for messages: what of them is exposed
  std::vector<Event> gathered_;  // by stage
  Event order_;
  ExchangeCounters counters_;
  DeviceBuffer own_;
  RingPlace ring_;
  NcclComm nccl_;  // after the memory that it registers: freed before it
  Stream stream_;
  bool enrolled_ = false;  // the ring with NCCL
};

// Transfers of this model's, also such as nobody waited for, come before what the next enqueues:
// its stream follows the compute stream.
void NcclRingExchange::leave() {
  layout_.may_leave();
  follow(compute_, stream_);
  layout_.forget();
}

// The streams are waited for: memory in use is not freed.
void NcclRingExchange::lose() {
  TRIREME_CUDA_CALL(cudaStreamSynchronize(stream_));
  TRIREME_CUDA_CALL(cudaStreamSynchronize(compute_));
  nccl_.dismiss();
  enrolled_ = false;
}

void NcclRingExchange::take_ring() {
  ring_.take();
  if (enrolled_) return;
  for (const auto part : {RingMemory::weights, RingMemory::gradients, RingMemory::received})
    nccl_.enroll(ring_[part], ring_.memory->bytes(part));
  enrolled_ = true;
}

void NcclRingExchange::gather(int stage) {
  take_ring();
  if (layout_.holds(stage)) return;
  layout_.occupy(stage);
  trace::Region region{"gather", stage, trace::Category::communication};
  follow(stream_, compute_);
  const ncclDataType_t type = options_.weight_type == DType::bf16 ? ncclBfloat16 : ncclFloat;
  const int64_t element = layout_.element_bytes();
  std::byte* base = layout_.weights(ring_[RingMemory::weights], stage);
  for (const auto& p : layout_.parameters(stage)) {
    const int64_t bytes = p.per_rank * element;
    TRIREME_CUDA_CALL(cudaMemcpyAsync(base + p.offset * element + comm_->rank() * bytes,
                                      own_slice(p.id), static_cast<size_t>(bytes),
                                      cudaMemcpyDeviceToDevice, stream_));
    counters_.gathered_bytes += (comm_->size() - 1) * bytes;
    region.add_bytes((comm_->size() - 1) * bytes);
  }
  NcclGroup group;
  for (const auto& p : layout_.parameters(stage)) {
    std::byte* whole = base + p.offset * element;
    nccl_.check(ncclAllGather(whole + comm_->rank() * p.per_rank * element, whole,
                              static_cast<size_t>(p.per_rank), type, nccl_.handle(), stream_),
                "ncclAllGather");
  }
  group.end(nccl_);
  gathered_[static_cast<size_t>(stage)].record(stream_);
  ++counters_.gathers;
}

std::vector<std::byte*> NcclRingExchange::gathered(int stage) {
  layout_.use(stage);
  compute_waits_for(gathered_[static_cast<size_t>(stage)]);
  return layout_.weight_pointers(ring_[RingMemory::weights], stage);
}

std::vector<float*> NcclRingExchange::gradients(int stage) {
  EXPECT(layout_.has_gradients());
  take_ring();
  layout_.may_write_gradients(stage);
  return layout_.gradient_pointers(ring_[RingMemory::gradients], stage);
}

// To bf16, at the beginning of the stage's memory: the first part by way of the memory for sums,
// which nobody uses now, then parts that double, each of which is written where those before it
// lay.
void NcclRingExchange::round_gradients(int stage) {
  const int64_t count = layout_.gradient_slot(stage).elements;
  const float* from = layout_.gradients(ring_[RingMemory::gradients], stage);
  auto* to = reinterpret_cast<uint16_t*>(layout_.gradients(ring_[RingMemory::gradients], stage));
  auto* aside = reinterpret_cast<uint16_t*>(ring_[RingMemory::received]);
  const int64_t first = std::min(count, layout_.slice_elements(stage));
  TRIREME_CUDA_CALL(launch_round(aside, from, first, stream_));
  TRIREME_CUDA_CALL(cudaMemcpyAsync(to, aside, static_cast<size_t>(first) * sizeof(uint16_t),
                                    cudaMemcpyDeviceToDevice, stream_));
  for (int64_t done = first; done < count; done = std::min(count, 2 * done)) {
    TRIREME_CUDA_CALL(
        launch_round(to + done, from + done, std::min(count, 2 * done) - done, stream_));
  }
}

void NcclRingExchange::reduce(int stage) {
  layout_.begin_reduction(stage);
  trace::Region region{"reduce gradients", stage, trace::Category::communication};
  follow(stream_, compute_);
  const bool rounds = options_.reduce_type == DType::bf16;
  if (rounds) round_gradients(stage);
  const auto* gradients =
      reinterpret_cast<const std::byte*>(layout_.gradients(ring_[RingMemory::gradients], stage));
  std::byte* out = ring_[RingMemory::received];
  NcclGroup group;
  for (const auto& p : layout_.gradient_slot(stage).parameters) {
    nccl_.check(ncclReduceScatter(
                    gradients + p.offset * reduced_element(), out, static_cast<size_t>(p.per_rank),
                    rounds ? ncclBfloat16 : ncclFloat, ncclSum, nccl_.handle(), stream_),
                "ncclReduceScatter");
    out += p.per_rank * reduced_element();
  }
  group.end(nccl_);
}

void NcclRingExchange::finish_reduce(int stage, const std::vector<float*>& into) {
  layout_.end_reduction(stage);
  const std::byte* sums = ring_[RingMemory::received];
  const auto& parameters = layout_.gradient_slot(stage).parameters;
  EXPECT(into.size() == parameters.size());
  follow(stream_, compute_);  // `into` may have been written since reduce()
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t count = parameters[i].per_rank;
    TRIREME_CUDA_CALL(
        options_.reduce_type == DType::bf16
            ? launch_add(into[i], reinterpret_cast<const uint16_t*>(sums), count, stream_)
            : launch_add(into[i], reinterpret_cast<const float*>(sums), count, stream_));
    sums += count * reduced_element();
    counters_.reduced_bytes += (comm_->size() - 1) * count * reduced_element();
  }
  join();
  ++counters_.reductions;
}

// NCCL refuses two ranks on one device. It tells devices apart by their bus addresses and machines
// by NCCL_HOSTID, where that is set: ranks with one each may share a device
// (tests/gpu/run.sh). From 2.30.3 on it takes them as they are, where it is told to.
constexpr int takes_several_ranks = 23003;  // version of NCCL

bool takes_ranks_that_share() {
  const char* wish = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  int version = 0;
  TRIREME_NCCL_CALL(ncclGetVersion(&version));
  return wish != nullptr && std::atoi(wish) != 0 && version >= takes_several_ranks;
}

bool share_a_device(const CommView& comm) {
  int device = 0;
  TRIREME_CUDA_CALL(cudaGetDevice(&device));
  const std::string host = hosts_of(comm)[static_cast<size_t>(comm.rank())];
  const auto buses = comm.all_gather(base::text(host, ":", device_bus_id(device)));
  const std::set<std::string> different(buses.begin(), buses.end());
  return !comm.all(takes_ranks_that_share()) && different.size() < buses.size();
}

std::unique_ptr<ShardExchange> make_device_exchange(Comm comm, std::vector<SlotGeometry> stages,
                                                    const ExchangeOptions& options) {
  if (!share_a_device(comm))
    return std::make_unique<NcclRingExchange>(std::move(comm), std::move(stages), options);
  if (comm->rank() == 0) {
    log::warning(
        "several ranks share a GPU, which NCCL refuses: weights and gradients go through host "
        "memory and MPI");
  }
  return std::make_unique<StagedExchange>(std::move(comm), std::move(stages), options);
}

}  // namespace

std::string device_bus_id(int device) {
  char bus[32] = "";
  TRIREME_CUDA_CALL(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
  return bus;
}

CudaVersions cuda_versions() {
  CudaVersions out;
  TRIREME_CUDA_CALL(cudaDriverGetVersion(&out.driver));
  TRIREME_CUDA_CALL(cudaRuntimeGetVersion(&out.runtime));
  return out;
}

void enable_device_exchange() {
  // NCCL would tell its peers of the buffers of recorded collectives, which LibTorch's segments
  // that grow (machine::set_allocator) do not bear.
  setenv("NCCL_GRAPH_REGISTER", "0", 0);
  device_support() = {
      .make_exchange = make_device_exchange,
      .make_sums =
          [](const CommView& comm, void* compute_stream) {
            return make_device_sums(comm, share_a_device(comm), compute_stream);
          },
      .find_trouble = &NcclComm::find_trouble,
      .lock_pages =
          [](std::byte* memory, int64_t bytes) {
            const bool locked = cudaHostRegister(memory, static_cast<size_t>(bytes),
                                                 cudaHostRegisterDefault) == cudaSuccess;
            if (!locked) static_cast<void>(cudaGetLastError());
            return locked;
          },
      .unlock_pages = [](std::byte* memory) { static_cast<void>(cudaHostUnregister(memory)); },
      .start_copy = &start_rows,
      .finish_copies = &finish_rows,
      .make_two_way_copies = &make_stream_copies,
      .sum_rows = &sum_rows_here,
      .takes_messages = [](const CommView& comm) { return !share_a_device(comm); },
      .make_messages = &make_nccl_messages,
      .make_clock = &make_event_clock};
  set_link_measurement([](const CommView& comm) -> std::optional<DeviceLinks> {
    if (share_a_device(comm)) return std::nullopt;
    return measure_nccl_links(comm, hosts_of(comm));
  });
}

}  // namespace trireme::comm
