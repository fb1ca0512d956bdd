// Moving: each step does what can be done now for every open flow, one bucket each, and waits for
// nothing.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "bucket_engine.hpp"
#include "packing.hpp"
#include "trireme/base/error.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::weightsync {

void BucketEngine::begin_flows() {
  count_changes();
  local_flow_ = local_bucket_ = 0;
  for (Outgoing& out : outgoing_) {
    out.next = 0;
    out.finished = false;
  }
  for (Incoming& in : incoming_) in.next = 0;
  begin_in_place();
}

// Collective over the ranks of the node: none of them copies before all tensors are what this
// version shall be.
void BucketEngine::begin_in_place() {
  if (!in_place_) return;
  std::vector<int64_t> bytes(sources_.data.empty() ? 0 : tensors_.size());
  std::ranges::transform(shard_elements_, bytes.begin(),
                         [this](int64_t elements) { return elements * element_bytes_; });
  const std::string problem = in_place_->begin(sources_.data, bytes);
  if (!problem.empty())
    error_ = UserError(ExitCode::internal, base::text("weight sync ", next_version_, ", rank ",
                                                      comm_.rank(), ": ", problem));
  const bool readable = in_place_->readable(node_rank(comm_.rank()));
  for (Outgoing& out : outgoing_)
    out.in_place = out.ring != nullptr && !out.flow->passed_on() && readable;
  for (Incoming& in : incoming_) {
    const bool here = in.ring != nullptr && !in.flow->passed_on() &&
                      in_place_->readable(node_rank(in.flow->from));
    in.in_place = here ? &in_place_->tensors(node_rank(in.flow->from)) : nullptr;
  }
}

SyncCounters BucketEngine::run(int64_t version, Sources sources, std::vector<void*> targets) {
  begin(version, std::move(sources), std::move(targets));
  begin_flows();
  trace::Region region{"weight sync", next_version_, trace::Category::communication};
  constexpr double patience = 1e-3;  // seconds of yielding; then whoever copies may have the core.
                                     // Messages move only while somebody looks after them.
  constexpr std::chrono::microseconds shortest_nap{50}, longest_nap{500};
  auto nap = shortest_nap;
  for (base::Stopwatch idle; !finished();) {
    const base::Stopwatch turn;
    if (step()) {
      idle.restart();
      nap = shortest_nap;
      continue;
    }
    if (idle.seconds() < patience || waits_for_messages()) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(nap);
      nap = std::min(2 * nap, longest_nap);
    }
    counters_.stall += turn.seconds();
  }
  agree();
  remember();
  region.add_bytes(counters_.bytes_received);
  return end();
}

bool BucketEngine::finished() const {
  if (local_flow_ < plan_.sends.size()) return false;
  return std::all_of(outgoing_.begin(), outgoing_.end(),
                     [](const Outgoing& out) { return out.finished; }) &&
         std::all_of(incoming_.begin(), incoming_.end(),
                     [](const Incoming& in) { return in.done(); });
}

bool BucketEngine::waits_for_messages() const {
  return std::ranges::any_of(
             outgoing_, [](const Outgoing& out) { return out.ring == nullptr && !out.finished; }) ||
         std::ranges::any_of(incoming_,
                             [](const Incoming& in) { return in.ring == nullptr && !in.done(); });
}

bool BucketEngine::step() {
  bool moved = activate();
  moved |= copy_local_buckets();
  for (Incoming& in : incoming_) {
    if (in.channel) moved |= receive(in);
  }
  for (Outgoing& out : outgoing_) {
    if (out.channel) moved |= send(out);
  }
  return moved;
}

// Opens channels: rings always, messages for the first unfinished flows in turn.
bool BucketEngine::activate() {
  bool opened = false;
  size_t active = 0;
  for (Incoming& in : incoming_) {
    if (in.done()) continue;
    if (in.ring == nullptr && ++active > most_active_) continue;
    if (in.channel) continue;
    const std::vector<int>& readers = in.flow->to;
    const auto mine = std::find(readers.begin(), readers.end(), comm_.rank()) - readers.begin();
    in.channel = in.ring != nullptr
                     ? ring_receiver(in.ring, options_.in_flight, slot_bytes(*in.flow),
                                     static_cast<int>(readers.size()), static_cast<int>(mine))
                     : message_receiver(comm_, in.flow->from, in.tag, options_.in_flight,
                                        static_cast<int64_t>(in.flow->buckets.size()), *pool_);
    opened = true;
  }
  active = 0;
  for (Outgoing& out : outgoing_) {
    if (out.finished) continue;
    if (out.ring == nullptr && ++active > most_active_) continue;
    if (out.channel) continue;
    const std::vector<int>& readers = out.flow->to;
    out.channel = out.ring != nullptr
                      ? ring_sender(out.ring, options_.in_flight, slot_bytes(*out.flow),
                                    static_cast<int>(readers.size()))
                      : message_sender(comm_, readers.front(), out.tag, options_.in_flight, *pool_);
    opened = true;
  }
  return opened;
}

// From bucket `first` on, from tensors to tensors; returns how many: a device, whose copies are few
// and fast, is given all of them, the host some, so that messages are looked after in between.
size_t BucketEngine::copy_some_buckets(const Flow& flow, size_t first,
                                       const std::vector<const void*>& from) const {
  constexpr size_t most_on_host = 64;
  const size_t left = flow.buckets.size() - first,
               count = options_.device ? left : std::min(most_on_host, left);
  const auto copy = [&](int64_t begin, int64_t end) {
    const size_t from_piece = flow.buckets[first + static_cast<size_t>(begin)].first,
                 to_piece = flow.buckets[first + static_cast<size_t>(end) - 1].last;
    start_local(target_copier_, std::span(flow.pieces).subspan(from_piece, to_piece - from_piece),
                element_bytes_, from, targets_);
    target_copier_.finish();
  };
  if (options_.parallel_for && !options_.device) {
    options_.parallel_for(static_cast<int64_t>(count), copy);
  } else {
    copy(0, static_cast<int64_t>(count));
  }
  return count;
}

bool BucketEngine::copy_local_buckets() {
  while (local_flow_ < plan_.sends.size() && plan_.sends[local_flow_].route != Route::local)
    ++local_flow_;
  if (local_flow_ == plan_.sends.size()) return false;
  const Flow& flow = plan_.sends[local_flow_];
  const size_t end = local_bucket_ + copy_some_buckets(flow, local_bucket_, sources_.data);
  for (; local_bucket_ < end; ++local_bucket_)
    counters_.bytes_local += flow.buckets[local_bucket_].elements * element_bytes_;
  if (local_bucket_ == flow.buckets.size()) {
    local_bucket_ = 0;
    ++local_flow_;
  }
  return true;
}

bool BucketEngine::send(Outgoing& out) {
  if (out.posted_all()) {
    if (!out.channel->drained()) return false;
    out.channel.reset();
    out.finished = true;
    return true;
  }
  if (out.flow->passed_on()) return false;  // fed by pass_on
  if (out.in_place) {
    for (; !out.posted_all(); ++out.next) {
      const int64_t bytes = out.flow->buckets[out.next].elements * element_bytes_;
      out.channel->post(bytes);
      count_sent(out, bytes, bytes);
    }
    return true;
  }
  const Bucket& bucket = out.flow->buckets[out.next];
  std::byte* slot = out.channel->acquire();
  if (slot == nullptr) return false;
  const int64_t payload = fill(*out.flow, bucket, slot);
  out.channel->post(static_cast<int64_t>(sizeof(BucketHeader)) + payload);
  ++out.next;
  count_sent(out, payload, bucket.elements * element_bytes_);
  return true;
}

void BucketEngine::count_sent(const Outgoing& out, int64_t payload_bytes, int64_t full_bytes) {
  const auto readers = static_cast<int64_t>(out.flow->to.size());
  counters_.bytes_sent += payload_bytes * readers;
  counters_.full_bytes += full_bytes * readers;
  if (leaves_node(*out.flow)) counters_.network_sent += payload_bytes;
  if (out.channel->is_message()) ++counters_.messages;
}

bool BucketEngine::receive(Incoming& in) {
  if (in.done()) return false;
  if (in.in_place) return copy_in_place(in);
  const std::byte* slot = in.channel->take();
  if (slot == nullptr) return false;
  const Bucket& bucket = in.flow->buckets[in.next];
  BucketHeader header;
  std::memcpy(&header, slot, sizeof header);
  // A length that the slot cannot hold would send us past its end; the bucket is lost then, and the
  // sync fails at its end.
  if (header.payload_bytes < 0 || header.payload_bytes > bucket.elements * element_bytes_)
    header.payload_bytes = 0;
  bool moved = false;
  if (!in.unpacked) {
    take_in(*in.flow, bucket, slot);
    in.unpacked = true;
    moved = true;
    counters_.bytes_received += header.payload_bytes;
    (leaves_node(*in.flow) ? counters_.network_received : counters_.bytes_in_node) +=
        header.payload_bytes;
  }
  moved |= pass_on(in, slot, header.payload_bytes);
  if (std::find(in.passed.begin(), in.passed.end(), false) != in.passed.end()) return moved;
  in.channel->release();
  in.unpacked = false;
  in.passed.assign(in.passes.size(), false);
  if (++in.next == in.flow->buckets.size()) in.channel.reset();
  return true;
}

bool BucketEngine::copy_in_place(Incoming& in) {
  if (in.channel->take() == nullptr) return false;  // the source posts all of them at once
  const size_t end = in.next + copy_some_buckets(*in.flow, in.next, *in.in_place);
  for (; in.next < end; ++in.next) {
    const int64_t bytes = in.flow->buckets[in.next].elements * element_bytes_;
    counters_.bytes_received += bytes;
    counters_.bytes_in_node += bytes;
    counters_.bytes_in_place += bytes;
    in.channel->release();
  }
  if (in.done()) in.channel.reset();
  return true;
}

// To the ranks that this one feeds, as it came.
bool BucketEngine::pass_on(Incoming& in, const std::byte* slot, int64_t payload_bytes) {
  bool moved = false;
  for (size_t i = 0; i < in.passes.size(); ++i) {
    Outgoing& out = *in.passes[i];
    if (in.passed[i] || !out.channel) continue;
    std::byte* to = out.channel->acquire();
    if (to == nullptr) continue;
    const int64_t bytes = static_cast<int64_t>(sizeof(BucketHeader)) + payload_bytes;
    std::memcpy(to, slot, static_cast<size_t>(bytes));
    out.channel->post(bytes);
    ++out.next;
    count_sent(out, payload_bytes, in.flow->buckets[in.next].elements * element_bytes_);
    in.passed[i] = true;
    moved = true;
  }
  return moved;
}

// The shard as sent, for the comparison of the next delta. Not needed with bitmaps.
void BucketEngine::remember() {
  const bool wanted = !shard_elements_.empty() && sources_.changed.empty() &&
                      std::any_of(outgoing_.begin(), outgoing_.end(), [&](const Outgoing& out) {
                        return !out.flow->passed_on() && may_send_deltas(*out.flow);
                      });
  if (!wanted) {
    previous_.clear();
    return;
  }
  previous_.resize(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    previous_[i].resize(static_cast<size_t>(shard_elements_[i] * element_bytes_));
    std::memcpy(previous_[i].data(), sources_.data[i], previous_[i].size());
  }
}

}  // namespace trireme::weightsync
