// How long a stream stands at its waits for another one, which no clock of the host sees: timing
// events before and behind each of them. Private to trireme_comm_cuda.
#pragma once

#include <deque>
#include <vector>

#include "comm/cuda_support.hpp"

namespace trireme::comm {

class StreamWaits {
 public:
  explicit StreamWaits(cudaStream_t stream) : stream_(stream) {}

  // Work enqueued on the stream from now on waits for `event`. Tells trace::add_device_wait() of
  // those waits that the stream has come through; the host waits for none.
  void wait_for(const Event& event);
  double seconds() const { return seconds_; }  // of all that were told of

 private:
  struct Wait {
    Event begin{Event::Kind::timing}, end{Event::Kind::timing};
  };
  void collect();

  cudaStream_t stream_;
  std::deque<Wait> open_;  // in the order of the stream
  std::vector<Wait> free_;
  double seconds_ = 0;
};

}  // namespace trireme::comm
