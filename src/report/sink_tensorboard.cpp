// Event files for TensorBoard: TFRecords of `Event` messages. Formats: tensorflow's
// core/lib/io/record_writer.cc, core/util/event.proto and core/framework/summary.proto.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <system_error>

#include "report/grown_file.hpp"
#include "report/sinks.hpp"
#include "report/wire_formats.hpp"
#include "trireme/base/text.hpp"

namespace trireme::report {
namespace {

// Fields of Event, Summary, Summary.Value and SessionLog.
constexpr int event_wall_time = 1, event_step = 2, event_file_version = 3, event_summary = 5,
              event_session_log = 7;
constexpr int summary_value = 1, value_tag = 1, value_simple = 2;
constexpr int session_status = 1, session_start = 1;

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32(Crc::castagnoli, bytes);
  return (crc >> 15 | crc << 17) + 0xA282EAD8;
}

std::string record_of(const ProtoMessage& event) {
  const std::string length = little_endian(event.bytes().size(), 8);
  return length + little_endian(masked_crc(length), 4) + event.bytes() +
         little_endian(masked_crc(event.bytes()), 4);
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "host";
}

class TensorBoardSink final : public MetricsSink {
 public:
  explicit TensorBoardSink(const SinkFacts& facts)
      : file_((remove_earlier(facts.run / "tensorboard"),
               facts.run / "tensorboard" /
                   base::text("events.out.tfevents.", base::fixed(facts.started, 0), ".",
                              host_name(), ".trireme"))) {
    ProtoMessage version;
    version.add_double(event_wall_time, facts.started)
        .add_bytes(event_file_version, "brain.Event:2");
    // A reader that has seen an earlier file forgets what came from it.
    ProtoMessage session, start;
    session.add_integer(session_status, session_start);
    start.add_double(event_wall_time, facts.started).add_integer(event_step, 0);
    start.add_message(event_session_log, session);
    file_.append(record_of(version) + record_of(start));
  }

  void add(const MetricLine& line) override {
    ProtoMessage summary;
    for (const auto& [name, value] : line.values) {
      ProtoMessage one;
      one.add_bytes(value_tag, path_name(name)).add_float(value_simple, static_cast<float>(value));
      summary.add_message(summary_value, one);
    }
    ProtoMessage event;
    event.add_double(event_wall_time, line.time).add_integer(event_step, line.iteration);
    event.add_message(event_summary, summary);
    file_.append(record_of(event));
  }

  void end(int64_t) override {}

 private:
  static void remove_earlier(const std::filesystem::path& folder) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      std::error_code ignored;
      if (name.starts_with("events.out.tfevents.") && name.ends_with(".trireme"))
        std::filesystem::remove(entry.path(), ignored);
    }
  }

  GrownFile file_;
};

}  // namespace

std::unique_ptr<MetricsSink> make_tensorboard_sink(const SinkFacts& facts) {
  return std::make_unique<TensorBoardSink>(facts);
}

}  // namespace trireme::report
