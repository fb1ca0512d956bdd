#include "comm/event_clock.hpp"

#include <deque>
#include <utility>

#include "trireme/base/stopwatch.hpp"

namespace trireme::comm {
namespace {

// Times of events are differences, in milliseconds of single precision: each mark's is added to
// that of the mark before.
class EventClock final : public trace::DeviceClock {
 public:
  explicit EventClock(cudaStream_t stream) : stream_(stream) {
    marks_.emplace_back(Event::Kind::timing);
    marks_.back().stamp(stream_);
    TRIREME_CUDA_CALL(cudaStreamSynchronize(stream_));
    seconds_ = base::monotonic_seconds();
  }

  bool stamp() noexcept override {
    try {
      if (free_.empty()) free_.emplace_back(Event::Kind::timing);
      free_.back().stamp(stream_);
      marks_.push_back(std::move(free_.back()));
      free_.pop_back();
      return true;
    } catch (...) {  // of a device that is lost: who works with it says so
      return false;
    }
  }

  std::vector<double> passed() noexcept override {
    std::vector<double> out;
    try {
      while (marks_.size() > 1 && marks_[1].is_over()) {
        seconds_ += marks_[1].seconds_since(marks_[0]);
        out.push_back(seconds_);
        free_.push_back(std::move(marks_.front()));
        marks_.pop_front();
      }
    } catch (...) {  // likewise
    }
    return out;
  }

 private:
  cudaStream_t stream_;
  std::deque<Event> marks_;  // the first is the newest that is over
  double seconds_ = 0;       // when that was
  std::vector<Event> free_;
};

}  // namespace

std::unique_ptr<trace::DeviceClock> make_event_clock(void* stream) {
  return std::make_unique<EventClock>(static_cast<cudaStream_t>(stream));
}

}  // namespace trireme::comm
