#include "comm/stream_waits.hpp"

#include <utility>

#include "trireme/trace/device_wait.hpp"

namespace trireme::comm {

void StreamWaits::wait_for(const Event& event) {
  collect();
  if (free_.empty()) free_.emplace_back();
  open_.push_back(std::move(free_.back()));
  free_.pop_back();
  open_.back().begin.stamp(stream_);
  event.block(stream_);
  open_.back().end.stamp(stream_);
}

void StreamWaits::collect() {
  double more = 0;
  while (!open_.empty() && open_.front().end.is_over()) {
    more += open_.front().end.seconds_since(open_.front().begin);
    free_.push_back(std::move(open_.front()));
    open_.pop_front();
  }
  if (more == 0) return;
  seconds_ += more;
  trace::add_device_wait(more);
}

}  // namespace trireme::comm
