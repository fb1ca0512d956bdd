#include "trace/device_phases.hpp"

#include <utility>

#include "trace/clock.hpp"
#include "trace/recorder.hpp"

namespace trireme::trace {

void DevicePhases::set(std::unique_ptr<DeviceClock> clock) {
  clock_ = std::move(clock);
  marks_.clear();
  open_.clear();
}

void DevicePhases::begin(ThreadRecord& main, const char* name, int64_t argument) {
  if (on()) stamp(main, {name, argument, main.current()});
}

void DevicePhases::end(ThreadRecord& main) {
  if (on()) stamp(main, {nullptr, no_argument, 0});
}

void DevicePhases::stamp(ThreadRecord& main, const Mark& mark) {
  if (!clock_->stamp()) return set(nullptr);
  marks_.push_back(mark);
  collect(main);
}

void DevicePhases::collect(ThreadRecord& main) {
  if (!on()) return;
  const std::vector<double> passed = clock_->passed();
  if (passed.empty()) return;
  Recorder& recorder = Recorder::instance();
  const TickScale scale = TickScale::now();
  for (const double now : passed) {
    const Mark mark = marks_.front();
    marks_.pop_front();
    if (mark.name != nullptr) {
      open_.push_back({mark, now});
      continue;
    }
    if (open_.empty()) continue;  // it began before the clock did
    const Open phase = open_.back();
    open_.pop_back();
    main.add_device_seconds(phase.mark.node, now - phase.since);
    recorder.device_lane().add_event({phase.mark.name, scale.ticks(phase.since), scale.ticks(now),
                                      phase.mark.argument, 0, static_cast<int32_t>(open_.size()),
                                      Category::phase});
  }
}

void set_device_clock(std::unique_ptr<DeviceClock> clock) {
  Recorder::instance().device.set(std::move(clock));
}

std::map<std::string, double> device_phase_seconds() {
  Recorder& recorder = Recorder::instance();
  recorder.device.collect(recorder.main_thread());
  std::map<std::string, double> out;
  for (const Node& node : recorder.main_thread().copy(ThreadRecord::What::totals).nodes) {
    if (node.device_seconds > node.device_seconds_at_reset)
      out[node.name] += node.device_seconds - node.device_seconds_at_reset;
  }
  return out;
}

}  // namespace trireme::trace
